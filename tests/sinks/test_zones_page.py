"""The page to click zones on, in a real browser."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import tomllib

from costream.core.places import parse_place
from costream.sinks.snapshot import write_zones_page
from kit.browser import browse, console, needs_browser

SOURCE = "rtsp://***@cam/</script><b>x"
CLICKS = """<script>
const box = svg.getBoundingClientRect();
const click = (x, y) => svg.dispatchEvent(new MouseEvent("click",
  {clientX: box.left + x * box.width, clientY: box.top + y * box.height, bubbles: true}));
const set = (id, value, kind) => { at(id).value = value; at(id).dispatchEvent(new Event(kind)); };
click(.1, .2); click(.4, .2); click(.4, .9); click(.9, .9);
at("undo").click();
set("name", "front 'door'", "input");
const refused = at("said").textContent;
set("name", "front \\u00e7 & door", "input");
at("next").click();
set("kind", "line", "change");
click(.5, 1.2); click(.5, 0);
at("next").click();
set("kind", "mask", "change");
click(0, 0); click(1, 0);
document.title = at("toml").value + "#" + refused + ", " + at("said").textContent;
</script>"""


@needs_browser
def test_corners_are_clicked_and_toml_is_shown(tmp_path: Path) -> None:
    page, picture = tmp_path / "zones.html", np.zeros((120, 160, 3), np.uint8)
    given = parse_place("bed=16,60 80,60 80,120", "zone", "--zone")
    write_zones_page(page, picture, [given], SOURCE)
    text = page.read_text("utf-8")
    assert SOURCE not in text
    page.write_text(text.replace("</body>", f"{CLICKS}</body>"), "utf-8")
    done = browse(page, tmp_path / "p", "--dump-dom", "--window-size=900,700")
    assert console(done) == []
    found = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert found is not None
    toml, said = html.unescape(found[1]).rsplit("#", 1)
    assert said == "not a name of a place: front 'door', a mask has at least 3 corners"
    (feed,) = tomllib.loads(toml)["feed"]
    assert feed["url"] == SOURCE
    assert set(feed) == {"url", "zone", "line"}
    bed, door = (parse_place(each, "zone", "zone") for each in feed["zone"])
    assert bed.points == ((0.1, 0.5), (0.5, 0.5), (0.5, 1.0))
    assert door.name == "front ç & door"
    corners = [(0.1, 0.2), (0.4, 0.2), (0.4, 0.9)]
    np.testing.assert_allclose(door.points, corners, atol=0.01)
    gate = parse_place(feed["line"][0], "line", "line")
    np.testing.assert_allclose(gate.points, [(0.5, 1), (0.5, 0)], atol=0.01)
