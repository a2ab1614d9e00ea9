#!/usr/bin/env bash
# Runs the benchmarks that match the pattern, one package at a time so that none disturbs another.
set -euo pipefail

pattern=${1:?usage: bench.sh PATTERN}

packages=$(grep -rl --include='*_test.go' --exclude-dir=testdata --exclude-dir=bench '^func Benchmark' . |
	xargs -r -n 1 dirname | sort -u) || true
if [[ -z $packages ]]; then
	echo "no benchmarks" >&2
	exit 1
fi
# shellcheck disable=SC2086 # one argument a package
exec go test -p 1 -run '^$' -bench "$pattern" -benchmem $packages
