#!/bin/sh
# check_layers.sh [ROOT]: includes point down, shim -> {pool, registry} -> config -> base, and only
# shim/ knows CUDA. Refuses what it cannot judge (`..`, a macro for a name): nothing slips by.
set -eu
cd "${1:-$(dirname "$0")/..}"

find base config registry pool -type f \( -name '*.[chS]' -o -name '*.def' \) -exec awk '
    function refuse(why) {
        printf "%s:%d: %s: %s\n", FILENAME, FNR, why, $0
        bad = 1
    }
    BEGIN {
        below["base"] = "base"
        below["config"] = "config base"
        below["registry"] = "registry config base"
        below["pool"] = "pool config base"
    }
    FNR == 1 { files++ }
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
        room = FILENAME
        sub("/.*", "", room)
        if (name ~ /\.\./)
            refuse("path with ..")
        else if (name ~ /[Cc]uda|CUDA|^(cu[A-Z]|cupti|nv|crt\/)|(driver|vector|builtin)_types/)
            refuse("CUDA header")
        else if (kind == "\"" && index(name, "/")) {
            split(name, part, "/")
            if (!index(" " below[room] " ", " " part[1] " "))
                refuse(room "/ must not include " part[1] "/")
        } else if (name ~ /^(base|config|registry|pool|shim|include|tests|scripts)\//)
            refuse("ours, so in quotes")
    }
    END {
        if (!bad)
            print files " files"
        exit bad
    }' {} +
