#!/usr/bin/env bash
# Prints the table of costs that the bench module measures, with the targets beside them; a second argument selects
# rows. With a pattern, it runs the go benchmarks that match instead, one package at a time so that none disturbs another.
set -euo pipefail

pattern=${1-}
rows=${2-}
if [[ -z $pattern ]]; then
	binary=$(mktemp -d)
	trap 'rm -rf "$binary"' EXIT
	CGO_ENABLED=0 go -C bench build -o "$binary/bench" .
	cd bench # where the command under test is found
	"$binary/bench" -rows "$rows"
	exit
fi

packages=$(grep -rl --include='*_test.go' --exclude-dir=testdata --exclude-dir=bench '^func Benchmark' . |
	xargs -r -n 1 dirname | sort -u) || true
if [[ -z $packages ]]; then
	echo "no benchmarks" >&2
	exit 1
fi
# shellcheck disable=SC2086 # one argument a package
exec go test -p 1 -run '^$' -bench "$pattern" -benchmem $packages
