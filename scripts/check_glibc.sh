#!/bin/sh
# check_glibc.sh LIBRARY VERSION: glibc VERSION is new enough for the library; otherwise each name
# that is newer is told.
set -eu
export LC_ALL=C
library=$1
most=$2

# Names before versions. One that no name has, as that of relative relocations, is refused by the
# loader of an older glibc as well.
wanted=$({
    readelf -W --dyn-syms "$library" | sed -n 's/.* UND \([^ ]*\)@\(GLIBC_[^ ]*\).*/\2 \1/p'
    readelf -W -V "$library" | sed -n 's/.* Name: \(GLIBC_[^ ]*\) .*/\1 ~/p'
} | sort -u)
if [ -z "$wanted" ]; then
    echo "check_glibc.sh: $library asks for nothing of glibc" >&2
    exit 1
fi

echo "$wanted" | awk -v library="$library" -v most="$most" '
    function newer(version, n, have, limit) {
        n = split(version, have, ".")
        split(most, limit, ".")
        return version !~ /^[0-9.]+$/ || have[1] > limit[1] + 0 ||
            (have[1] == limit[1] + 0 && have[2] > limit[2] + 0)
    }
    { version = substr($1, 7) }
    $2 != "~" { named[version] = 1 }
    newer(version) && ($2 != "~" || !named[version]) {
        print library ": " ($2 == "~" ? "the library" : $2) " needs " $1 >"/dev/stderr"
        bad = 1
    }
    END {
        if (bad)
            print library ": made for glibc " most " or later" >"/dev/stderr"
        exit bad
    }'
