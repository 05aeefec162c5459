#!/bin/sh
# draw_pictures.sh: the pictures of docs/, each an SVG made by graphviz's dot from the .dot beside it.
# The picture has its source's checksum in it: what is up to date stays as it is, since other versions
# of dot draw other bytes, and tests/test_docs.py finds a picture whose source has changed.
set -eu
cd "$(dirname "$0")/.."

find docs -name '*.dot' | sort | while read -r source; do
    picture=${source%.dot}.svg
    sum=$(sha256sum "$source" | cut -d ' ' -f 1)
    mark="<!-- sha256 of the source: $sum -->"
    ! grep -qsF "$mark" "$picture" || continue
    if ! command -v dot >/dev/null; then
        echo "draw_pictures.sh: $picture is out of date; install graphviz, which has dot" >&2
        exit 1
    fi
    dot -Tsvg "$source" -o "$picture.new"
    echo "$mark" >>"$picture.new"
    mv "$picture.new" "$picture"
    echo "$picture"
done
