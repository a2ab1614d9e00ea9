# Everything a contributor runs. `make` alone lists the targets.

SHELL := /bin/bash

GO       ?= go
ARGS     ?= --help
PKG      ?= ./...
BENCH    ?=
ROWS     ?=
PRODUCTS ?=
FUZZTIME ?= 10s
COUNT    ?= 10

LINTER := $(GO) tool -modfile=tools/go.mod golangci-lint

# -race needs cgo; the product itself is built without it.
RACE := CGO_ENABLED=1 GORACE=atexit_sleep_ms=0 $(GO) test -race -shuffle=on

# With PRODUCTS=1 the tests get the real products that they drive; without, those tests skip.
WITH := $(if $(filter-out 0,$(PRODUCTS)),products=$$(bash tools/products.sh) && export OFFSHOOT_PRODUCTS="$$products" && )

.PHONY: help run test lint vuln bench fuzz soak fmt tidy build cc

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## run the command: make run ARGS='run "Map this repository"'
	@CGO_ENABLED=0 $(GO) run ./cmd/offshoot $(ARGS)

test: cc ## all tests under the race detector (PKG=./session/... for some, PRODUCTS=1 with the real products)
	@$(GO) mod download
	$(WITH)$(RACE) -timeout 20m $(TESTFLAGS) $(PKG)

lint: ## the pinned linters; their first build takes some minutes
	$(LINTER) run $(PKG)

vuln: ## known vulnerabilities in what is called, offline; also checks that the check works
	CGO_ENABLED=0 $(GO) -C tools test ./vuln
	CGO_ENABLED=0 $(GO) -C tools run ./vuln .. ../bench

bench: ## the table of costs and targets (ROWS=sqlite for some, PRODUCTS=1 with the real products); BENCH=Append or BENCH=. runs go benchmarks
	@$(WITH)bash tools/bench.sh '$(BENCH)' '$(ROWS)'

fuzz: ## every fuzz target for FUZZTIME (10s) each
	@bash tools/fuzz.sh '$(FUZZTIME)'

soak: cc ## all tests COUNT (10) times, then once the long form of those that have one
	$(WITH)$(RACE) -count $(COUNT) -timeout 2h $(TESTFLAGS) $(PKG)
	$(WITH)$(RACE) -tags soak -timeout 4h $(TESTFLAGS) $(PKG)

fmt: ## format the code
	gofmt -l -w .

tidy: ## tidy the module files
	$(GO) mod tidy
	$(GO) -C tools mod tidy
	$(GO) -C bench mod tidy

build: ## build bin/offshoot
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/offshoot

cc:
	@bash tools/cc.sh
