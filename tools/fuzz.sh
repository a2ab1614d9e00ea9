#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time, one after the other. A crasher fails the run and leaves its
# input in testdata/fuzz of its package, to be committed with the fix.
set -euo pipefail

duration=${1:?usage: fuzz.sh DURATION}

# go test -list prints the names of a package before the line that names the package.
targets=$(go test -list '^Fuzz' ./... |
	awk '/^Fuzz/ { names[++n] = $1 } /^ok/ { for (i = 1; i <= n; i++) print $2, names[i]; n = 0 }')
if [[ -z $targets ]]; then
	echo "no fuzz targets" >&2
	exit 1
fi
# Left to itself, go spends up to a minute on making one new input of a log smaller, and tries nothing else meanwhile.
while read -r package name; do
	echo "== $package $name"
	go test -run '^$' -fuzz "^$name\$" -fuzztime "$duration" -fuzzminimizetime 1s "$package" </dev/null
done <<<"$targets"
