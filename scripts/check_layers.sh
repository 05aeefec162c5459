#!/bin/sh
# check_layers.sh [ROOT]: includes point down, folder by folder, and only shim/ knows CUDA. Refuses
# what it cannot judge (`..`, a macro for a name, a folder in no list): nothing slips by.
#
# A line is a layer: its folders, a colon, and what they may include beside each other. That is in
# lines further up, so that no two layers include each other. `room/*` is a room with all its
# folders. A room without a line is not looked at. A .def of
# shim/ is a list of names without code: each folder of the room makes its own table of it.
set -eu
cd "${1:-$(dirname "$0")/..}"

layers='
base:
config:          base
registry/stack registry/python: base
registry/table:  base
registry/names:  registry/stack registry/python base
registry/journal: registry/table registry/stack registry/python base
registry/report: registry/names registry/table registry/stack config base
pool/*:          config base
include:
shim/cuda:       core
shim/upstream:   shim/cuda core
shim/alloc:      shim/upstream shim/cuda core
shim/driver:     shim/alloc shim/upstream shim/cuda core
shim/hooks:      shim/alloc shim/upstream shim/cuda core
shim/life:       shim/hooks shim/driver shim/alloc shim/upstream shim/cuda core
'
# The rooms below shim/.
core='registry/stack registry/python registry/table registry/names registry/journal registry/report pool/*'
layers=$(echo "$layers" | sed "s,\<core\$,$core config base include,")
export layers

# One room of each folder that has a line.
rooms=$(echo "$layers" | sed 's/:.*//' | tr ' ' '\n' | sed 's/\/.*//' | sort -u)

# shellcheck disable=SC2086 # several
find $rooms -type f \( -name '*.[chS]' -o -name '*.def' \) -exec awk '
    function refuse(why) {
        printf "%s:%d: %s: %s\n", FILENAME, FNR, why, $0
        bad = 1
    }
    function wrong_list(why) {
        print "check_layers.sh: " why
        bad = 1
    }
    function parent(path) {
        return sub(/\/[^\/]*$/, "", path) ? path : ""
    }
    # The entry of the list that a folder falls under, or "".
    function entry(folder,    at) {
        if (folder in layer)
            return folder
        for (at = folder; at != ""; at = parent(at))
            if (at "/*" in layer)
                return at "/*"
        return ""
    }
    function read_layer(line,    side, above, below, i, n, m) {
        split(line, side, ":")
        n = split(side[1], above, " ")
        m = split(side[2], below, " ")
        for (i = 1; i <= m; i++)
            if (!(below[i] in layer))
                wrong_list(below[i] " is in no line above \"" line "\"")
        for (i = 1; i <= n; i++) {
            if (above[i] in layer)
                wrong_list(above[i] " has two lines")
            layer[above[i]] = side[1]
            allowed[above[i]] = " " side[1] " " side[2] " "
        }
    }
    BEGIN {
        count = split(ENVIRON["layers"], lines, "\n")
        for (i = 1; i <= count; i++)
            if (lines[i] != "")
                read_layer(lines[i])
    }
    FNR == 1 {
        files++
        folder = entry(parent(FILENAME))
        if (folder == "")
            refuse(parent(FILENAME) "/ is in no list")
    }
    /^[ \t]*#[ \t]*(include|import|include_next)([^a-z_]|$)/ {
        name = $0
        sub(/^[ \t]*#[ \t]*[a-z_]+[ \t]*/, "", name)
        kind = substr(name, 1, 1)
        if (name !~ /^(<[^<>]+>|"[^"]+")/) {
            refuse("not a plain include")
            next
        }
        name = substr(name, 2)
        sub(/[>"].*/, "", name)
        if (name ~ /\.\./)
            refuse("path with ..")
        else if (FILENAME !~ /^shim\// &&
                 name ~ /[Cc]uda|CUDA|^(cu[A-Z]|cupti|nv|crt\/)|(driver|vector|builtin)_types/)
            refuse("CUDA header")
        else if (FILENAME ~ /^shim\// && name ~ /^shim\/.*\.def$/)
            next
        else if (kind == "\"" && index(name, "/")) {
            to = entry(parent(name))
            if (to == "" || !index(allowed[folder], " " to " "))
                refuse(parent(FILENAME) "/ must not include " parent(name) "/")
        } else if (name ~ /^(base|config|registry|pool|shim|include|tests|scripts)\//)
            refuse("ours, so in quotes")
    }
    END {
        if (!bad)
            print files " files"
        exit bad
    }' {} +
