#!/bin/sh
# Starts a watch with the options of the add-on and, if there is one, the broker of Home Assistant.
set -eu

option() { jq -r ".$1 // empty" /data/options.json; }

feeds=/config/feeds.toml
if [ ! -e "$feeds" ]; then
    echo "There is no list of feeds: write feeds.toml in the folder of this add-on in addon_configs" >&2
    exit 1
fi
set -- -m "$(option model)" --keep "$(option keep)"
set -- "$@" -o /config/log --rotate day --db /config/events.sqlite --state-dir /data/state
set -- "$@" --snapshots /config/pictures --web 0.0.0.0:8080
COSTREAM_WEB_TOKEN=$(option web_token)
export COSTREAM_WEB_TOKEN

broker=$(curl -sf -H "Authorization: Bearer ${SUPERVISOR_TOKEN:-}" \
    http://supervisor/services/mqtt || true)
value() { printf '%s' "$broker" | jq -r ".data.$1 // empty"; }
if [ -n "$broker" ]; then
    COSTREAM_MQTT_USER=$(value username)
    COSTREAM_MQTT_PASSWORD=$(value password)
    export COSTREAM_MQTT_USER COSTREAM_MQTT_PASSWORD
    scheme=mqtt
    if [ "$(value ssl)" = true ]; then scheme=mqtts; fi
    set -- "$@" --mqtt "$scheme://$(value host):$(value port)"
else
    echo "Home Assistant has no MQTT broker: the watch runs without one" >&2
fi
unset SUPERVISOR_TOKEN
# The arguments are split as a shell would, but nothing in them is run.
exec python3 -c 'import os, shlex, sys
os.execvp("costream", ["costream", "watch", *sys.argv[2:], *shlex.split(sys.argv[1])])' \
    "$(option arguments)" "$feeds" "$@"
