# make build     bin/lgpu, with the C libraries and lshmem inside
# make test      every test that needs no GPU; under ten minutes
# make demo      three tenants share a software GPU; prints a table of limits asked for and delivered
# make demo-shmem  the PEs of a job pass numbers around inside a kernel, and from Python
# make test-alerts  the alert rules in Prometheus, which fires one; a minute or two to build
# make attack    a hostile tenant attacks the daemon beside honest ones; ten minutes, or SECONDS=60
# make bench     the tables of docs/benchmarks.md; needs an NVIDIA GPU and PyTorch
# make bench-shmem  lshmem beside NVSHMEM; needs two NVIDIA GPUs, nvcc, and NVSHMEM's Python package
# make compat    what runs natively, in an lgpu, a contained one, one with --overcommit: docs/compatibility.md; needs a GPU
# make install   the binary, man pages, completions and the unit, below PREFIX=/usr/local; make uninstall removes them
# make packages  deb, rpm, archive and their checksums in build/package; make image an image for Docker
# make kube      bin/lgpu-kube, the driver of Kubernetes; make test-kube its tests, beside a daemon
# make kube-control-plane  what test-kube needs to run a real control plane too; minutes, and 4 GB of Go's build cache
# make e2e-kube  tests of a whole node, as root; make kube-node, with Debian's libseccomp-dev, what they need beside the former;
#                make kube-docker  Docker, which one of them is skipped without
# make image-kube  its image; make kube-manifests kube/deploy/lgpu.yaml, from the chart beside it
# make lint      gofmt, vet, staticcheck, C without a warning
# make race      make test, under the race detector where it sees anything
# make sanitize  the C tests under AddressSanitizer and UBSan
# make generate  write all generated files again; kernels need clang-14 (the tests') and clang-19 (lshmem's, liblgpu's)
#
# build, test and demo need only Go, a C compiler, make and git. V=1 shows the commands.
$(V).SILENT:

CC ?= cc
GO ?= go
WERROR ?=
export CC
GOBUILD = CGO_ENABLED=0 $(GO)

B := build/lib
LSHMEM_HEADERS := $(notdir $(wildcard shmem/include/*.h shmem/include/*.cuh))
# What lgpu carries inside and writes out before it runs a program, relative to $(B).
FILES := liblgpu.so sim/libcuda.so.1 sim/libnvidia-ml.so.1 lshmem/liblshmem.so lshmem/lshmem.py \
	$(addprefix lshmem/include/,$(LSHMEM_HEADERS))
ARCHIVE := internal/assets/archive/libraries.zip

# The binary has neither DWARF nor a symbol table, which would add a third; make build GO_LDFLAGS= keeps them for a
# debugger. Profiles and panics show functions and lines without. Of the C libraries in it, too, a debugger knows
# functions and lines, but no variables (-g1). The tag leaves out gRPC's trace pages. They use templates, which call
# methods by name, so the linker would have to keep every method of every type.
GO_LDFLAGS ?= -s -w
# What lgpu version says. Without a tag, a version that sorts before the first release and after earlier commits.
COMMIT := $(shell git describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null)
COMMIT_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
VERSION ?= $(or $(patsubst v%,%,$(shell git describe --tags --exact-match 2>/dev/null)),\
	0.0.0~$(or $(shell git rev-list --count HEAD 2>/dev/null),0).g$(shell echo $(COMMIT) | cut -c1-12))
# Go's own note of the commit would add whether any file lies about, and so differ between two builds of the same source.
BUILD_FLAGS := -trimpath -buildvcs=false
BUILD_LDFLAGS = -X main.buildVersion=$(strip $(VERSION)) -X main.buildCommit=$(COMMIT) \
	-X main.buildDate=$(shell date -u -d @$(COMMIT_EPOCH) +%Y-%m-%dT%H:%M:%SZ)
TAGS := grpcnotrace

.PHONY: build libraries test race attack sanitize demo demo-shmem bench bench-shmem compat lint generate clean
build: $(ARCHIVE) build/demo/tenant build/demo/ring
	$(GOBUILD) build $(BUILD_FLAGS) -tags $(TAGS) -ldflags '$(GO_LDFLAGS) $(BUILD_LDFLAGS)' -o bin/lgpu ./cmd/lgpu

# The interposer. tenant/liblgpu/sources.mk is written for that folder.
include tenant/liblgpu/sources.mk
LIBLGPU_FLAGS = $(patsubst -I.,-Itenant/liblgpu,$(patsubst -I../%,-Itenant/%,$(filter-out -Werror,$(LGPU_CFLAGS)))) $(WERROR)
LIBLGPU_OBJECTS := $(LGPU_SOURCES:%=build/liblgpu/%.o)
$(B)/liblgpu.so: $(LIBLGPU_OBJECTS) tenant/liblgpu/liblgpu.map
	echo "  LD  $@"
	mkdir -p $(@D)
	$(CC) $(subst liblgpu.map,tenant/liblgpu/liblgpu.map,$(LGPU_LDFLAGS)) -o $@ $(LIBLGPU_OBJECTS) $(LGPU_LIBS)
build/liblgpu/%.o: tenant/liblgpu/% tenant/liblgpu/sources.mk Makefile
	echo "  CC  $<"
	mkdir -p $(@D)
	$(CC) $(LIBLGPU_FLAGS) -MMD -MP -c -o $@ $<
-include $(LIBLGPU_OBJECTS:.o=.d)

# The software GPU's client libraries.
SIMC := sim/client
SIMC_OUT := $(B)/sim
SIMC_CFLAGS := -std=c11 -O2 -g1 -Wall -Wextra $(WERROR)
include sim/client/build.mk

# lshmem's library is Go with a C interface. Go knows best whether anything has changed.
LSHMEM_SOURCES := $(shell find shmem internal/slip internal/units go.mod go.sum -name '*_test.go' -prune -o -type f -print)
$(B)/lshmem/liblshmem.so: $(LSHMEM_SOURCES)
	echo "  GO  $@"
	mkdir -p $(@D)
	CGO_ENABLED=1 CGO_CFLAGS="-O2 $(WERROR)" $(GO) build $(BUILD_FLAGS) -buildmode=c-shared \
		-ldflags "-s -w -extldflags '-Wl,--version-script=$(CURDIR)/shmem/lib/liblshmem.map -Wl,-soname,liblshmem.so'" -o $@ ./shmem/lib
	rm -f $(@D)/liblshmem.h # cgo's own: shmem/include/lshmem.h is the interface

$(B)/lshmem/lshmem.py: shmem/python/lshmem.py
$(addprefix $(B)/lshmem/include/,$(LSHMEM_HEADERS)): $(B)/lshmem/include/%: shmem/include/%
$(B)/lshmem/lshmem.py $(addprefix $(B)/lshmem/include/,$(LSHMEM_HEADERS)):
	mkdir -p $(@D)
	cp $< $@

$(ARCHIVE): $(addprefix $(B)/,$(FILES))
	echo "  ZIP $@"
	GOOS= GOARCH= $(GO) run ./internal/assets/pack $@ $(B) $(FILES)

build/demo/tenant: demo/tenant/tenant.c $(B)/sim/libcuda.so.1
	echo "  CC  $<"
	mkdir -p $(@D)
	$(CC) -std=c11 -O2 -Wall -Wextra $(WERROR) -Itenant/abi/include -o $@ $< $(B)/sim/libcuda.so.1

build/demo/ring: demo/shmem/ring.c $(B)/sim/libcuda.so.1 $(B)/lshmem/liblshmem.so
	echo "  CC  $<"
	mkdir -p $(@D)
	$(CC) -std=c11 -O2 -Wall -Wextra $(WERROR) -Itenant/abi/include -Ishmem/include -o $@ $< $(B)/sim/libcuda.so.1 $(B)/lshmem/liblshmem.so

# Never from the cache, which does not know of the C sources that tests compile. The tests of whole systems look at
# shares of time: they run by themselves, one package after the other.
#
# The race detector sees Go alone. It would only slow tests whose subject is C or device code, code without goroutines, or
# the built command, and one test needs full speed: those run without it.
# The longest come first: the last one to end has a processor for itself.
WITHOUT_RACES := ./shmem/litmus/... ./tenant/liblgpu/... ./shmem/device/... ./shmem/kernels/... ./shmem/model/... \
	./inspect/conformance ./policy/schedule/... ./policy/slot ./policy/residence ./sim/igpu
RACELESS := /lgpu/(test|tenant/liblgpu|shmem/(device|litmus|kernels|model)|inspect/conformance|policy/(schedule|slot|residence)|sim/igpu$$)(/|$$)
WITH_RACES = ./shmem ./shmem/transport/ibgda ./shmem/hca/gpu $$($(GO) list ./... | grep -vE '$(RACELESS)')
GOTEST := $(GO) test -count=1
test: build
	$(GOTEST) -timeout 25m $(WITH_RACES) $(WITHOUT_RACES)
	$(GOTEST) -timeout 30m -p 1 ./test/...

race: build
	CGO_ENABLED=1 $(GOTEST) -race -timeout 25m $(WITH_RACES)
	$(GOTEST) -timeout 40m $(WITHOUT_RACES)
	$(GOTEST) -timeout 9m ./shmem -run TestGPU/allocations
	$(GOTEST) -timeout 30m -p 1 ./test/...

# As root, or the attackers are the daemon's own user. Every attack that succeeds fails a subtest of its name.
SECONDS := 600
attack: build
	LGPU_ATTACK=$(SECONDS)s $(GO) test -count=1 -v -timeout $$(($(SECONDS) * 3 + 300))s -run '^TestAttack$$' ./test/attack

# The C libraries under sanitizers: the driver's clients under the address sanitizer, which wants to be the first library
# of a process and so cannot be in the preloaded one, and all of it under the undefined-behaviour sanitizer. Programs of
# lshmem's C interface under both; its device code as CPU code runs under all three in its own tests (shmem/device, litmus).
UBSAN := -fsanitize=undefined -fno-sanitize-recover=all
sanitize: build
	echo "  CC  build/sanitize"
	mkdir -p build/sanitize/sim
	$(CC) $(LIBLGPU_FLAGS) $(UBSAN) $(addprefix tenant/liblgpu/,$(LGPU_SOURCES)) -static-libubsan -o build/sanitize/liblgpu.so \
		$(filter-out -nostartfiles,$(subst liblgpu.map,tenant/liblgpu/liblgpu.map,$(LGPU_LDFLAGS))) $(LGPU_LIBS)
	$(MAKE) SIMC_OUT=build/sanitize/sim SIMC_CFLAGS="-std=c11 -O1 -g $(UBSAN) -fsanitize=address" \
		build/sanitize/sim/libcuda.so.1 build/sanitize/sim/libnvidia-ml.so.1
	CFLAGS="$(UBSAN) -fsanitize=address" ASAN_OPTIONS=detect_leaks=0 \
		bin/lgpu run --sim=2x16GiB,sms=32 -- env -u LD_PRELOAD test/cuda/run.sh build/sanitize/sim
	bin/lgpu run --sim=2x16GiB,sms=32 --memory 15GiB --compute 90 -- \
		env LD_PRELOAD=$(CURDIR)/build/sanitize/liblgpu.so test/cuda/run.sh $(B)/sim
	LSHMEM_TEST_CFLAGS="$(UBSAN) -fsanitize=address" ASAN_OPTIONS=detect_leaks=0 \
		$(GO) test -count=1 ./shmem/lib/test -run 'EveryFunction|Threads|Compat'

demo: build
	$(GO) run ./demo

demo-shmem: build
	bin/lgpu run --sim=2x16GiB,sms=4 --pes 2 -- build/demo/ring demo/shmem/ring.ptx
	bin/lgpu run --sim=2x16GiB,sms=4 --pes 2 -- python3 demo/shmem/ring.py

bench: build
	sh bench/memory.sh
	python3 bench/node.py
	python3 bench/overhead.py

bench-shmem: build
	python3 bench/shmem.py

compat: build
	python3 bench/compat.py

lint: build
	! gofmt -l $$(git ls-files '*.go') | grep .
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	mkdir -p build
	$(GO) build -o build/staticcheck honnef.co/go/tools/cmd/staticcheck
	cd kube && $(GO) vet ./... && ../build/staticcheck ./...

# The driver of Kubernetes is a module of its own, so that lgpu's has none of its libraries.
.PHONY: kube test-kube
kube:
	cd kube && $(GOBUILD) build $(BUILD_FLAGS) -tags $(TAGS) -ldflags '$(GO_LDFLAGS)' -o ../bin/lgpu-kube ./cmd/lgpu-kube

test-kube: build kube
	test -x $(PLANE)/helm || printf '\n  NOT RUN: the tests with a real control plane, which is not built: make kube-control-plane\n\n' >&2
	cd kube && $(GOTEST) -timeout 10m $$($(GO) list ./... | grep -v /e2e$$)

# The alert rules in Prometheus, of which this builds what scrapes, stores and evaluates.
.PHONY: test-alerts
test-alerts: build
	cd test/alerts && $(GOTEST) -timeout 10m .

# Kubernetes' own programs, as released, for tests. Built without -trimpath, so that vet finds the same objects in the cache.
PLANE := build/kube
PLANE_VERSION = $(shell cd kube/controlplane && $(GO) list -m -f '{{.Version}}' k8s.io/kubernetes)
PLANE_LDFLAGS = -s -w -X k8s.io/component-base/version.gitVersion=$(PLANE_VERSION) \
	-X k8s.io/component-base/version.gitMajor=1 \
	-X k8s.io/component-base/version.gitMinor=$(word 2,$(subst ., ,$(PLANE_VERSION))) \
	-X k8s.io/client-go/pkg/version.gitVersion=$(PLANE_VERSION)
# What kwok does for nodes and pods, as released with it.
KWOK_STAGES := node/fast/node-initialize node/heartbeat-with-lease/node-heartbeat-with-lease pod/fast/pod-ready pod/fast/pod-delete
.PHONY: kube-control-plane
kube-control-plane:
	for program in . k8s.io/kubernetes/cmd/kubectl helm.sh/helm/v4/cmd/helm; do \
		$(GOBUILD) -C kube/controlplane build -o ../../$(PLANE)/ -ldflags '$(PLANE_LDFLAGS)' $$program || exit 1; \
	done
	$(GOBUILD) -C kube/kwok build -o ../../$(PLANE)/ -ldflags '-s -w' sigs.k8s.io/kwok/cmd/kwok
	for stage in $(KWOK_STAGES); do \
		echo --- && cat "$$($(GO) -C kube/kwok list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage/$$stage.yaml" || exit 1; \
	done > $(PLANE)/kwok.yaml
	cd kube/controlplane && CGO_ENABLED=0 $(GO) vet ./...

# The rest of a node for tests, as released: the kubelet, of the same packages as the control plane, and what runs containers,
# with nerdctl, which starts them without Kubernetes.
RUNTIME_LDFLAGS = -s -w -X github.com/containerd/containerd/v2/version.Version=$(call version,runtime,github.com/containerd/containerd/v2)
version = $(shell cd kube/$(1) && $(GO) list -m -f '{{.Version}}' $(2))
NERDCTL_LDFLAGS = -s -w -X github.com/containerd/nerdctl/v2/pkg/version.Version=$(call version,nerdctl,github.com/containerd/nerdctl/v2)
.PHONY: kube-node e2e-kube
kube-node:
	$(GOBUILD) -C kube/controlplane build -o ../../$(PLANE)/ -ldflags '$(PLANE_LDFLAGS)' k8s.io/kubernetes/cmd/kubelet
	$(GOBUILD) -C kube/runtime build -o ../../$(PLANE)/ -tags 'no_btrfs no_devmapper no_zfs' -ldflags '$(RUNTIME_LDFLAGS)' \
		$(addprefix github.com/containerd/containerd/v2/cmd/,containerd containerd-shim-runc-v2 ctr)
	CGO_ENABLED=1 $(GO) -C kube/runtime build -o ../../$(PLANE)/ -tags 'urfave_cli_no_docs seccomp netgo osusergo' \
		-ldflags "-s -w -X main.version=$(patsubst v%,%,$(call version,runtime,github.com/opencontainers/runc)) -linkmode external \
		-extldflags -static" github.com/opencontainers/runc
	$(GOBUILD) -C kube/nerdctl build -o ../../$(PLANE)/ -ldflags '$(NERDCTL_LDFLAGS)' github.com/containerd/nerdctl/v2/cmd/nerdctl

# Docker's daemon and its client, for a test of such a node that is skipped without them. The client has no go.mod, which would
# say which version of the language it is in.
DOCKER_LDFLAGS = -s -w -X github.com/moby/moby/v2/dockerversion.Version=$(call version,docker,github.com/moby/moby/v2) \
	-X github.com/docker/cli/cli/version.Version=$(patsubst v%+incompatible,%,$(call version,docker,github.com/docker/cli))
.PHONY: kube-docker
kube-docker:
	$(GOBUILD) -C kube/docker build -o ../../$(PLANE)/ -tags exclude_graphdriver_btrfs -ldflags '$(DOCKER_LDFLAGS)' \
		-gcflags 'github.com/docker/cli/...=-lang=go1.26' github.com/moby/moby/v2/cmd/dockerd github.com/docker/cli/cmd/docker

# Tests of a whole node, as root.
e2e-kube: build kube
	test -x $(PLANE)/runc || printf '\n  NOT RUN: what a node has is not built: make kube-control-plane kube-node\n\n' >&2
	cd kube && $(GOTEST) -timeout 20m -v ./e2e

# The manifests for those who do not use Helm are what the chart makes.
.PHONY: kube-manifests
kube-manifests:
	{ echo '# Code generated from kube/deploy/chart by make kube-manifests. DO NOT EDIT.'; \
		$(PLANE)/helm template lgpu kube/deploy/chart --namespace lgpu-system --set namespace.create=true; } > kube/deploy/lgpu.yaml

generate:
	$(GO) generate ./...

include packaging/install.mk

clean:
	rm -rf bin build $(ARCHIVE)
