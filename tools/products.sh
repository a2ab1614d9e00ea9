#!/usr/bin/env bash
# Installs the real products that tests drive, one set a folder of tools/products, each into a folder of its own in the
# user's cache that is named after what it holds, and prints where they are, as OFFSHOOT_PRODUCTS wants it: SET=DIR
# joined by colons; SET alone where this system cannot have it. A set that is there already costs nothing. A folder in the
# cache is complete or absent, also when two installations meet; it may be removed at any time that no test runs.
set -euo pipefail

sets=$(cd "$(dirname "${BASH_SOURCE[0]}")/products" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/offshoot/products

fail() {
	printf 'products: %s\n' "$*" >&2
	exit 1
}

# link_node DIR puts Node.js at DIR/bin/node: the one that the set brought, or the system's where none is packaged
# for it. It fails if there is none that is new enough.
link_node() {
	local node
	mkdir "$1/bin"
	for node in "$1"/node_modules/node-*/bin/node; do
		[[ -x $node ]] || continue
		ln -s "../${node#"$1"/}" "$1/bin/node"
		return
	done
	node=$(command -v node)
	(($("$node" -p 'process.versions.node.split(".")[0]') >= 22)) || return 1
	ln -s "$node" "$1/bin/node"
}

# install SET DIR installs a set as DIR, or leaves nothing. It runs in a shell of its own, and exits with 3 where the system
# cannot have the set.
install() {
	for tool in npm node; do
		command -v "$tool" >/dev/null || fail "$tool is not installed; the products come from its registry"
	done
	mkdir -p "$cache"
	new=$(mktemp -d "$cache/.new-XXXXXX")
	trap 'rm -rf "$new"' EXIT
	cp "$sets/$1/package.json" "$sets/$1/package-lock.json" "$sets/$1/.npmrc" "$new"
	printf 'products: installing the set %s\n' "$1" >&2
	(cd "$new" && npm ci >&2) || fail "npm cannot install the set $1"
	if ! link_node "$new"; then
		printf 'products: the set %s needs Node.js 22, which is neither packaged for %s nor installed\n' "$1" "$(uname -sm)" >&2
		exit 3
	fi
	"$new/bin/node" --version >/dev/null || fail "the Node.js of the set $1 does not run here"
	# rename(2) refuses a folder that is there: then somebody else was quicker, and theirs is as good.
	node -e 'require("fs").renameSync(process.argv[1], process.argv[2])' "$new" "$2" 2>/dev/null ||
		[[ -d $2 ]] || fail "cannot rename $new to $2"
}

# versions DIR lists what of a set's package.json is installed, with its version.
versions() {
	node -e '
		const dir = process.argv[1], p = JSON.parse(require("fs").readFileSync(dir + "/package.json"))
		const names = Object.keys({...p.dependencies, ...p.optionalDependencies})
		const found = n => { try { return n + " " + JSON.parse(require("fs").readFileSync(`${dir}/node_modules/${n}/package.json`)).version } catch { return "" } }
		console.log(names.map(found).filter(Boolean).join(", "))' "$1"
}

list=()
for dir in "$sets"/*/; do
	name=$(basename "$dir")
	key=$(cd "$dir" && cat package.json package-lock.json .npmrc | git hash-object --stdin)
	target=$cache/$name-${key:0:12}
	if [[ ! -d $target ]]; then
		set +e # else bash ignores errors within a shell whose result is tested
		(
			set -e
			install "$name" "$target"
		)
		code=$?
		set -e
		case $code in
		0) ;;
		3)
			# What this project is developed and checked on has every product.
			[[ $(uname -s) != Linux ]] || exit 1
			list+=("$name")
			continue
			;;
		*) exit "$code" ;;
		esac
	fi
	list+=("$name=$target")
	printf 'products: %s has %s\n' "$name" "$(versions "$target")" >&2
done
IFS=:
printf '%s\n' "${list[*]}"
