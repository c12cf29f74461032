#!/bin/sh
# Runs a server and its client as two programs: pair.sh SERVER CLIENT. The client has to get back what it
# sends; the server ends by itself after this client.
service=pair-$$
text="hello from $$"
"$1" "$service" 1 &
server=$!
trap 'kill "$server" 2>/dev/null' EXIT
tries=0
until answer=$("$2" "$service" "$text" 2>/dev/null); do
  tries=$((tries + 1))
  [ "$tries" -lt 100 ] || { echo "no answer from the server"; exit 1; }
  sleep 0.1
done
[ "$answer" = "$text" ] || { echo "sent \"$text\", got back \"$answer\""; exit 1; }
wait "$server"
