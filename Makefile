# SPDX-License-Identifier: Apache-2.0

GO ?= go
CLANG_FORMAT ?= clang-format-19
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT ?= $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
LDFLAGS = -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)
comma := ,
GOSRC = $(shell git ls-files '*.go' | grep -v _bpfel.go)

.PHONY: help build demo test test-unit judge vm vm-tool vm-check vm-fetch vm-table fuzz bench generate check clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build ./bin/sockhealth (needs only Go)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/sockhealth ./cmd/sockhealth

demo: build ## Play the incidents on real sockets, in namespaces of their own (root)
	./bin/sockhealth demo

# The cases come last and alone: ten thousand sockets are not to meet other tests' agents,
# and what is judged by the clock no other tests.
test: ## Run every test, those on real sockets included (root)
	SOCKHEALTH_MUST_RUN=1 $(GO) test -count=1 -p 2 -timeout 30m $$($(GO) list ./... | grep -vE '/test/(cases|judge)')
	SOCKHEALTH_MUST_RUN=1 $(GO) test -count=1 -p 1 -timeout 30m ./test/cases ./test/judge

test-unit: ## Run the tests that need no privilege and no kernel feature
	$(GO) test -count=1 -short ./...

# The last line says how many passed, and so does the exit status. With VM the same is done
# in a machine of that kernel, and takes no root.
JUDGE = -test.run '^TestJudge$$' -test.timeout 0
judge: build $(if $(VM),vm-tool) ## Judge COUNT connections in trouble (default 500), at random by SEED, under the kernel VM if given, and print what came of it (root)
	CGO_ENABLED=0 $(GO) test -c -o bin/judge.test ./test/judge
ifdef VM
	@cd test/judge && $(CURDIR)/bin/vm/vm exec --kernel $(VM) --timeout 1h --beside $(CURDIR)/bin/sockhealth \
		--env SOCKHEALTH_JUDGE_COUNT=$(or $(COUNT),500) --env SOCKHEALTH_JUDGE_SEED=$(SEED) $(CURDIR)/bin/judge.test $(JUDGE)
else
	@cd test/judge && SOCKHEALTH_MUST_RUN=1 SOCKHEALTH_BIN=$(CURDIR)/bin/sockhealth SOCKHEALTH_JUDGE_COUNT=$(or $(COUNT),500) SOCKHEALTH_JUDGE_SEED=$(SEED) \
		$(CURDIR)/bin/judge.test $(JUDGE)
endif

# Needs qemu-system-x86 (qemu-system-arm for arm64), busybox-static, cpio, kmod,
# xz-utils and zstd, what the tests run there (gcc, libc6-dev, runc), and neither root
# nor KVM.
vm: vm-tool ## Run every privileged test under other kernels: KERNEL=5.10,6.1 RUN=pattern, with VARIANTS=1 doctor, demo and variants, too
	bin/vm/vm matrix $(if $(KERNEL),--kernel $(KERNEL)) $(if $(RUN),--run '$(RUN)') $(if $(VARIANTS),--variants)

vm-tool: ## Build ./bin/vm/vm and the guests' first process
	CGO_ENABLED=0 $(GO) build -o bin/vm/vm ./test/vm
	for arch in amd64 arm64; do CGO_ENABLED=0 GOARCH=$$arch $(GO) build -ldflags '-s -w' -o bin/vm/init-$$arch ./test/vm/init || exit 1; done

vm-check: vm-tool ## Test the machines that `make vm` runs the tests in
	bin/vm/vm fetch newest
	SOCKHEALTH_VM_KERNEL=newest SOCKHEALTH_VM_INIT=$(CURDIR)/bin/vm/init-amd64 $(GO) test -count=1 ./test/vm

vm-fetch: vm-tool ## Unpack kernels into the cache folder: KERNEL=5.10,6.1
	bin/vm/vm fetch $(subst $(comma), ,$(KERNEL))

vm-table: vm-tool ## Write what the last `make vm` of a commit found into docs/kernels.md
	bin/vm/vm table docs/kernels.md

fuzz: ## Fuzz each fuzz target for FUZZTIME (default 20s)
	@for pkg in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$pkg | grep ^Fuzz); do \
			echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(or $(FUZZTIME),20s) $$pkg || exit 1; \
		done; done

bench: ## Measure, each figure beside its rival of the same run (root)
	$(GO) test -run '^$$' -bench . -benchmem ./...

generate: ## Compile the BPF programs and write their bindings (clang-19, llvm-19, libbpf-dev)
	$(GO) generate ./internal/loader

check: generate ## Demand what is committed: generated files, format, vet, both architectures, module
	$(CLANG_FORMAT) --dry-run --Werror bpf/*.c bpf/*.h bpf/include/*.h
	@test -z "$$(gofmt -l $(GOSRC))" || { echo "gofmt -w: $$(gofmt -l $(GOSRC))"; exit 1; }
	$(GO) vet ./...
	GOOS=darwin $(GO) vet ./report
	GOARCH=arm64 $(GO) vet ./...
	CGO_ENABLED=0 GOARCH=arm64 $(GO) build ./...
	CGO_ENABLED=0 GOARCH=arm64 $(GO) test -c -ldflags='-s -w' -o /dev/null ./... >/dev/null # linked, too
	$(GO) mod tidy -diff
	git diff --exit-code -- internal/loader

clean: ## Remove what build made
	rm -rf bin
