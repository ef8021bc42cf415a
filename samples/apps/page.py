"""A page that shows what is in a recording: uvicorn page:app (FastAPI, python-multipart)."""

import html
import shutil
import tempfile
from pathlib import Path

from fastapi import FastAPI, UploadFile
from fastapi.responses import HTMLResponse

import costream
from costream.core.errors import CostreamError

app = FastAPI()
FORM = """<!DOCTYPE html><title>costream</title><h1>What is in it?</h1>
<form method="post" enctype="multipart/form-data">
<input type="file" name="file"> <button>Look</button></form>"""


@app.get("/", response_class=HTMLResponse)
def form() -> str:
    return FORM


@app.post("/", response_class=HTMLResponse)
def look(file: UploadFile) -> HTMLResponse:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"recording{Path(file.filename or '').suffix}")
        with path.open("wb") as target:
            shutil.copyfileobj(file.file, target)
        try:
            return HTMLResponse(costream.detect(path, end=60).collect().to_html())
        except CostreamError as error:
            return HTMLResponse(f"{FORM}<p>{html.escape(str(error))}", 400)
