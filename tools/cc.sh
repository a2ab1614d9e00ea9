#!/usr/bin/env bash
# Makes sure of a C compiler that can link, which go test -race needs. On a Debian machine of a CI, as root, it installs
# one; anywhere else it says what is missing.
set -euo pipefail

compiler=$(go env CC)

works() {
	printf '#include <stdlib.h>\nint main(void) { return EXIT_SUCCESS; }\n' |
		$compiler -x c -o /dev/null - 2>/dev/null # unquoted: CC may carry flags
}

if works; then
	exit 0
fi
if [[ ${CI:-} == true && $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
	echo "no working C compiler ($compiler); installing gcc" >&2
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q >&2
	apt-get install -q -y --no-install-recommends gcc libc6-dev >&2
	if works; then
		exit 0
	fi
fi
cat >&2 <<TEXT
The tests run under Go's race detector, which needs a C compiler, and "$compiler" does not work here.
  Debian, Ubuntu   apt-get install gcc libc6-dev
  Fedora           dnf install gcc
  Alpine           apk add gcc musl-dev
  macOS            xcode-select --install
Without one, "go test ./..." runs the same tests without the race detector.
TEXT
exit 1
