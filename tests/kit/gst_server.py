"""An RTSP server on GStreamer, for rtsp_server.py: a program for the system's own Python.

Its argument is a JSON object: ``port`` (0: a free one), ``login`` (null, or [user, password]),
``digest``, ``transport`` ("tcp", "udp" or null for both) and ``mounts``, a name -> GStreamer's
description of a pipeline. It prints "READY PORT" once clients can come; SIGTERM ends it.
"""

from __future__ import annotations

import json
import signal
import sys

import gi

for name in ("Gst", "GstRtsp", "GstRtspServer"):
    gi.require_version(name, "1.0")
from gi.repository import GLib, Gst, GstRtsp, GstRtspServer  # noqa: E402


def serve(told: dict) -> None:
    server = GstRtspServer.RTSPServer.new()
    server.set_address("127.0.0.1")
    server.set_service(str(told["port"]))
    if told["login"]:
        server.set_auth(_login(*told["login"], told["digest"]))
    for name, pipeline in told["mounts"].items():
        factory = GstRtspServer.RTSPMediaFactory()
        factory.set_launch(f"( {pipeline} )")
        if told["transport"]:
            factory.set_protocols(getattr(GstRtsp.RTSPLowerTrans, told["transport"].upper()))
        if told["login"]:
            factory.set_permissions(_permissions())
        server.get_mount_points().add_factory(f"/{name}", factory)
    if not server.attach(None):
        sys.exit("cannot bind")
    print("READY", server.get_bound_port(), flush=True)
    loop = GLib.MainLoop()
    GLib.unix_signal_add(GLib.PRIORITY_HIGH, signal.SIGTERM, loop.quit)
    loop.run()


def _login(user: str, password: str, digest: bool) -> GstRtspServer.RTSPAuth:
    token = GstRtspServer.RTSPToken()
    token.set_string(GstRtspServer.RTSP_TOKEN_MEDIA_FACTORY_ROLE, "user")
    auth = GstRtspServer.RTSPAuth.new()
    if digest:
        auth.set_supported_methods(GstRtsp.RTSPAuthMethod.DIGEST)
        auth.add_digest(user, password, token)
    else:
        auth.add_basic(GstRtspServer.RTSPAuth.make_basic(user, password), token)
    return auth


def _permissions() -> GstRtspServer.RTSPPermissions:
    permissions = GstRtspServer.RTSPPermissions()
    permissions.add_role("user")
    for what in ("access", "construct"):
        permissions.add_permission_for_role("user", f"media.factory.{what}", True)
    return permissions


if __name__ == "__main__":
    Gst.init(None)
    serve(json.loads(sys.argv[1]))
