# Every target works from a fresh clone. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VERSION := $(shell cat VERSION)
COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
GOARCH  ?= $(shell go env GOARCH)
# profstackdepth=0 saves 2 KiB in every thread, which only profiles of locks use. If go.mod names an older
# Go than the one that builds, it replaces the settings that the go command would choose.
LDFLAGS := -s -w -buildid= -X runtime.godebugDefault=profstackdepth=0 -X main.version=$(VERSION) -X main.commit=$(COMMIT)
# The Green Tea collector of Go 1.26 keeps marks in each block of the heap. Without it a box with one program takes
# 0.3 MiB less. The go command fails for an experiment that it does not know, as a later one may.
EXPERIMENT := $(shell GOEXPERIMENT=nogreenteagc go version >/dev/null 2>&1 && echo nogreenteagc)
BUILD   := CGO_ENABLED=0 GOOS=linux GOEXPERIMENT=$(EXPERIMENT) go build -trimpath -buildvcs=false -ldflags "$(LDFLAGS)"
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
DEADCODE := golang.org/x/tools/cmd/deadcode@v0.50.0
UNPARAM  := mvdan.cc/unparam@v0.0.0-20260823230713-2fa3d841b0c8
SOURCES := $(shell git ls-files -co --exclude-standard '*.go' go.mod go.sum '*.json' 'schema/*' 'probes/console/*' 'docs/*.md' VERSION 2>/dev/null)

.PHONY: help build demo test lint race e2e console-test kubelet-test docs chaos bench fuzz image image-test fmt generate vendor-hash clean deps

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: bin/agentinit bin/agentctl ## both binaries into bin/, static

# The linker writes a file through mmap(2), so the kernel keeps most of it in memory page by page. It keeps a copy in larger
# pieces: from a copy, a box with one program starts in three quarters of the time.
bin/agentinit bin/agentctl: bin/%: $(SOURCES)
	@mkdir -p bin
	GOARCH=$(GOARCH) $(BUILD) -o $@.linked ./cmd/$*
	@cp $@.linked $@.copy && rm $@.linked && mv $@.copy $@

bin/testprog: $(SOURCES)
	@mkdir -p bin
	GOARCH=$(GOARCH) $(BUILD) -o $@ ./internal/testprog

demo: deps build ## boot the example in the best isolation here, show it, stop it
	./examples/demo.sh

# Many tests wait more than they compute, so there is one package more than processors. With more, a
# real server that a test runs beside itself could be too slow for the time limits of agentinit. A busy
# machine takes up to five times as long as a quiet one, where no package takes two minutes.
PACKAGES := -timeout 20m -p $(shell expr 1 + $$(nproc))

# Without the checks of vet that go test repeats: `make lint` makes all of them. In a fresh clone they took a seventh of the build.
test: deps ## unit and script tests of everything
	go test -vet=off -shuffle=on $(PACKAGES) ./...

# Without the tests of the top directory: they have no goroutines, and read the sources for a minute.
# SQLite is C that a program translated to Go, with memory of its own, in which the detector sees nothing. Watched,
# it triples the processor time of the slots' tests. A process that it watches would sleep for a second before it
# exits, and the tests start hundreds. Vet has seen the same files in `make lint`.
race: deps-test ## the same tests with the race detector (RACEFLAGS: more flags of go test)
	CGO_ENABLED=1 GORACE=atexit_sleep_ms=0 go test -race -vet=off -gcflags=modernc.org/...=-race=false -shuffle=on $(PACKAGES) $(RACEFLAGS) $$(go list ./... | grep -vx "$$(go list .)")

# Only tests call these: they wrap one adapter for the contract suites, and the
# client has a method for each route of the control socket.
TESTS_ONLY := adapters/port_|supervisor/control/api/client\.go

lint: ## gofmt, vet, staticcheck, functions and parameters without use
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "not gofmt-ed:"; echo "$$out"; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) ./...
	go run $(UNPARAM) ./...
	@out=$$(go run $(DEADCODE) -test ./...) || exit 1; if [ -n "$$out" ]; then echo "neither a program nor a test calls:"; echo "$$out"; exit 1; fi
	@out=$$(go run $(DEADCODE) ./cmd/... ./image ./release ./nix/vendorhash) || exit 1; \
	  out=$$(echo "$$out" | grep -vE '^($(TESTS_ONLY))' || true); if [ -n "$$out" ]; then echo "only tests call:"; echo "$$out"; exit 1; fi

# go test ends a package after 10 minutes unless told otherwise. A slow machine needs longer.
e2e: deps image-test ## end to end: real PID 1, real containers (root)
	AGENTINIT_E2E=1 go test -count=1 -timeout 40m -v -parallel 6 ./e2e/...
	AGENTINIT_E2E=1 go test -count=1 -v -run PGlite ./adapters/memory

console-test: deps build ## the web console in a real browser (chromium); pictures of its pages in dist/console
	cd test/console && go vet ./... && go test -count=1 -v ./...

kubelet-test: deps build ## the probes of a generated pod, asked by the kubelet's own prober (root)
	cd test/kubelet && go vet ./... && go test -count=1 -v ./...

docs: deps-docs ## the documentation as a searchable static site in dist/docs (mkdocs)
	./.ci/docs

chaos: build bin/testprog ## a box under random attack for CHAOSTIME (default 10m; root)
	AGENTINIT_E2E=1 CHAOSTIME=$${CHAOSTIME:-10m} go test -count=1 -timeout 30m -v -run '^TestChaos$$' ./e2e

bench: deps-bench build bin/testprog ## measure, beside a bare C loop and the peers installed here (BENCHFLAGS: more flags)
	@mkdir -p dist
	go run ./bench -json dist/bench.json -svg-start dist/bench-start.svg -svg-capture dist/bench-capture.svg $(BENCHFLAGS)

fuzz: ## each fuzz target for FUZZTIME (default 60s)
	./.ci/fuzz $${FUZZTIME:-60s}

# The image of a manifest: MANIFEST=agentbox.toml, SKILLS=directory for
# /opt/agentbox/skills, IMAGEFLAGS for more files (go run ./image -h).
MANIFEST ?= examples/minimal.toml
NIXSYSTEM = $(if $(filter arm64,$(GOARCH)),aarch64-linux,x86_64-linux)
# Of this machine, whatever architecture the image is for.
HOST := env -u GOARCH -u GOOS go run -ldflags "$(LDFLAGS)"
LABELS = -label org.opencontainers.image.version=$(VERSION) -label org.opencontainers.image.revision=$(COMMIT)

image: ## the container image of MANIFEST for GOARCH as one tar, for docker, podman and containerd
	@$(HOST) ./cmd/agentctl config validate --system $(NIXSYSTEM) $(MANIFEST)
	@$(MAKE) -s dist/$(GOARCH)/agentinit dist/$(GOARCH)/agentctl
	@$(HOST) ./cmd/agentctl generate image --system $(NIXSYSTEM) -o dist/$(GOARCH)/image.json $(MANIFEST) 2>/dev/null
	@$(HOST) ./image -o dist/agentbox-$(GOARCH).tar -arch $(GOARCH) -ref localhost/agentbox:dev -ref localhost/agentbox:runtime-$(NIXSYSTEM) \
	  -config dist/$(GOARCH)/image.json -roots $(LABELS) \
	  -add dist/$(GOARCH)/agentinit:/bin/agentinit -add dist/$(GOARCH)/agentctl:/bin/agentctl \
	  -add $(MANIFEST):/etc/agentbox.toml $(if $(SKILLS),-tree $(SKILLS):/opt/agentbox/skills) $(IMAGEFLAGS)

.PHONY: images release licenses vulncheck
images: ## both architectures, and one OCI archive with an index of them
	@$(MAKE) -s image GOARCH=amd64
	@$(MAKE) -s image GOARCH=arm64
	@$(HOST) ./image -o dist/agentbox.oci.tar -ref localhost/agentbox:dev join dist/agentbox-amd64.tar dist/agentbox-arm64.tar

define binaries
dist/$(1)/agentinit dist/$(1)/agentctl: dist/$(1)/%: $$(SOURCES)
	@mkdir -p dist/$(1)
	GOARCH=$(1) $$(BUILD) -o $$@ ./cmd/$$*
endef
$(foreach arch,amd64 arm64,$(eval $(call binaries,$(arch))))

release: images ## dist/release: tarballs, Debian packages, SBOM, provenance, licences, checksums; then vulncheck
	@rm -rf dist/release
	@$(HOST) ./release -o dist/release -version $(VERSION) -modcache $$(go env GOMODCACHE) dist amd64 arm64
	@cp dist/agentbox.oci.tar dist/release/agentbox-$(VERSION).oci.tar
	@cd dist/release && sha256sum agentbox-$(VERSION).oci.tar >>SHA256SUMS && sha256sum --quiet -c SHA256SUMS
	@./.ci/vulncheck

licenses: dist/$(GOARCH)/agentinit dist/$(GOARCH)/agentctl ## the licences of all modules in the binaries, to standard output
	@$(HOST) ./release -licenses -modcache $$(go env GOMODCACHE) dist $(GOARCH)

vulncheck: ## known vulnerabilities in what the binaries call (needs vuln.go.dev or GOVULNDB)
	./.ci/vulncheck

image-test: bin/agentinit bin/agentctl bin/testprog ## the image the end-to-end tests run
	go run ./image -o dist/agentbox-test.tar -arch $(GOARCH) -ref localhost/agentbox:test \
	  -add bin/agentinit:/bin/agentinit -add bin/agentctl:/bin/agentctl -add bin/testprog:/bin/testprog \
	  -add e2e/testdata/container.toml:/etc/agentbox.toml

fmt: ## gofmt everything
	gofmt -w $$(git ls-files '*.go')

generate: ## write the generated documents and golden files anew
	./.ci/generate

deps: ## install what is missing (Debian packages, as root), or say what it is
	@./.ci/deps base

deps-%:
	@./.ci/deps $*

vendor-hash: ## nix/hashes.json anew, after a change of go.mod
	@dir=$$(mktemp -d) && go mod vendor -o $$dir/vendor && go run ./nix/vendorhash $(VENDORHASHFLAGS) $$dir/vendor; rc=$$?; rm -rf $$dir; exit $$rc

clean: ## remove what was built
	rm -rf bin dist
