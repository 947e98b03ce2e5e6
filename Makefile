# Two commands matter: `make run` starts a one-machine cluster, `make test`
# tests everything that this machine can. Both set up what they need.

VERSION  ?= v1.36.3+shoal
COMMIT   := $(shell git rev-parse HEAD 2>/dev/null)
PKG      := github.com/shoal-project/shoal
LDFLAGS  := -s -w -X k8s.io/component-base/version.gitVersion=$(VERSION) -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36 \
	-X k8s.io/client-go/pkg/version.gitVersion=$(VERSION) -X k8s.io/client-go/pkg/version.gitCommit=$(COMMIT) \
	-X $(PKG)/agent/node.Version=$(VERSION) -X $(PKG)/coordinator/apiserver.gitVersion=$(firstword $(subst +, ,$(VERSION)))
GO       ?= go
BINS     := bin/shoal bin/shoal-coordinator bin/shoal-agent bin/shoal-pause bin/shoal-hybrid bin/shoal-fence bin/shoal-tunnel bin/shoal-gateway bin/shoal-cni
UP_FLAGS ?=

# Static binaries, and one set of compiled packages for programs and tests.
export CGO_ENABLED := 0

.PHONY: all setup build images test-images kubectl helm run down test test-unit test-e2e test-model test-chaos test-containerd gvisor fuzz critest conformance conformance-failed conformance-build conformance-subset node-suite netpol-conformance gateway-conformance csi-e2e csi-sanity s3 lint bench gossip-bench gossip-virtual peer-bench api-diff api-diff-replay ecosystem cni-conformance clean help FORCE fleet chaos install deb rpm

all: build images ## build the binaries and the example image

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: ## install what the product needs from the distribution
	@hack/setup.sh

build: $(BINS)

bin/shoal: FORCE
	$(GO) build -ldflags "$(LDFLAGS)" -o $@ ./agent/shoal
bin/shoal-coordinator: FORCE
	$(GO) build -ldflags "$(LDFLAGS)" -o $@ ./coordinator
bin/shoal-agent: FORCE
	$(GO) build -ldflags "$(LDFLAGS)" -o $@ ./agent
bin/shoal-pause: FORCE
	$(GO) build -ldflags "-s -w" -o $@ ./agent/pause
bin/shoal-hybrid: FORCE
	$(GO) build -ldflags "-s -w" -o $@ ./agent/oci/shoal-hybrid
bin/shoal-fence: FORCE
	$(GO) build -ldflags "-s -w" -o $@ ./agent/fence/shoal-fence
bin/shoal-tunnel: FORCE
	$(GO) build -ldflags "-s -w" -o $@ ./cni/shoal-tunnel
bin/shoal-gateway: FORCE
	$(GO) build -ldflags "-s -w" -o $@ ./agent/gatewayproxy/shoal-gateway
bin/shoal-cni: FORCE
	$(GO) build -ldflags "$(LDFLAGS)" -o $@ ./cni/shoal-cni

images: bin/images/hello.tar ## pack the example image

bin/images/hello.tar: hack/hello/main.go hack/image/main.go
	@mkdir -p bin/images
	$(GO) build -ldflags "-s -w" -o bin/hello ./hack/hello
	$(GO) run ./hack/image -name localhost/hello:1 -out $@ -entrypoint /hello -port 8080/tcp bin/hello=/hello

test-images: ## pack busybox and nginx from Debian's packages, for the tests
	@hack/test-images.sh bin/test-images

kubectl: bin/kubectl ## build upstream's kubectl from its library

# One module for both, with the product's versions: what it has compiled serves them.
bin/kubectl: tests/clients/kubectl/main.go tests/clients/go.mod
	cd tests/clients && $(GO) build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 -X k8s.io/client-go/pkg/version.gitVersion=v1.36.3" -o ../../$@ ./kubectl

helm: bin/helm ## build upstream's helm, for the tests

bin/helm: tests/clients/go.mod
	cd tests/clients && $(GO) build -ldflags "-s -w" -o ../../$@ helm.sh/helm/v3/cmd/helm

run: setup build images kubectl ## start a cluster on this machine; Ctrl-C stops it
	bin/shoal up $(UP_FLAGS)

down: ## stop the cluster that `make run` started
	bin/shoal down $(UP_FLAGS)

# Clusters wait more than they compute: the unit tests take what they leave of the
# machine, at a lower priority. Each prints its lines when it is over.
test: setup build images test-images kubectl helm bin/gotestsum ## run all tests of this machine
	@$(MAKE) --no-print-directory -j2 --output-sync=target UNIT_NICE='nice -n 10' test-unit test-e2e test-model
	@echo "The slowest:"
	@cat bin/test-unit.json bin/test-e2e.json bin/test-model.json | bin/gotestsum tool slowest --num 10

# gotestsum runs go test and prints its lines; its exit status is that of the tests.
# One or two tests that fail are run once more, unless they met a data race or a panic:
# a machine whose cores others use stands still for seconds now and then. Such a test
# is named at the end as FLAKY, a bug to mend; RERUNS=0 looks for them.
RERUNS ?= 1
# Test programs are large and run once: where memory has room they are not written to the disk.
# Go is told by a file: the variable itself would move what tests write as well.
LINK_DIR := $(shell [ "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 8000000 ] 2>/dev/null && \
	! findmnt -no OPTIONS -T /dev/shm | grep -qw noexec && echo /dev/shm)
GO_TEST = env PATH="$(dir $(shell command -v $(GO))):$$PATH" $(if $(LINK_DIR),GOENV=$(CURDIR)/bin/goenv) \
	bin/gotestsum --hide-summary skipped --jsonfile bin/$@.json -f standard-quiet \
	--rerun-fails=$(RERUNS) --rerun-fails-max-failures=2 --rerun-fails-abort-on-data-race --packages
bin/goenv: FORCE
	@mkdir -p bin
	@{ grep -sv '^GOTMPDIR=' "$$($(GO) env GOENV)"; echo 'GOTMPDIR=$(LINK_DIR)'; } >$@

TELL_FAILURES = || rc=$$?; $(GO) run ./tests/failures <bin/$@.json; exit $${rc:-0}

bin/gotestsum: Makefile
	GOBIN=$(CURDIR)/bin $(GO) install gotest.tools/gotestsum@v1.13.0

# Go answers for packages that have not changed since they passed, unless their
# tests are to run in another order each time, as CI does.
SHUFFLE ?= off

# Informers share the watch cache's objects: who modifies one is found out. Without
# debug information (-w) a test program links in two thirds of the time. Each of the 200
# would stay for a second at its end, under the race detector.
test-unit: bin/gotestsum bin/goenv ## rules, API in process, kernel parts, with the race detector; no cluster
	@CGO_ENABLED=1 KUBE_CACHE_MUTATION_DETECTOR=true GORACE=atexit_sleep_ms=10 $(UNIT_NICE) $(GO_TEST) "$$($(GO) list ./... | grep -vE '/tests/(e2e|chaos|containerd|gvisor)' | tr '\n' ' ')" -- \
		-race $(if $(filter on,$(SHUFFLE)),-shuffle=on) -ldflags=-w -timeout 25m $(TELL_FAILURES)

test-model: bin/gotestsum bin/goenv ## models whose every state is looked at, without the race detector
	@$(UNIT_NICE) $(GO_TEST) ./agent/fence -- -run 'Writers|Needed' -timeout 25m $(TELL_FAILURES)

test-e2e: bin/gotestsum bin/goenv ## whole clusters in network namespaces
	@$(GO_TEST) ./tests/e2e/... -- -count=1 -timeout 25m $(TELL_FAILURES)

test-chaos: ## kill daemons under load; takes minutes
	$(GO) test -count=1 -timeout 30m ./tests/chaos/...

test-containerd: setup build images test-images kubectl ## the agent on containerd 2.4.2, built from the module proxy
	GO=$(GO) $(GO) test -count=1 -timeout 15m -v ./tests/containerd/...

# The newest version of the branch of gVisor that Go can build, which has no tags.
GVISOR ?= v0.0.0-20260905035102-160fafc42237

gvisor: setup build images test-images kubectl bin/runsc ## pods in gVisor, whose runtime is built from the module proxy
	$(GO) test -count=1 -timeout 15m -run GVisor -v ./agent/runtime
	$(GO) test -count=1 -timeout 15m -v ./tests/gvisor/...

bin/runsc: Makefile
	GOBIN=$(CURDIR)/bin $(GO) install gvisor.dev/gvisor/runsc@$(GVISOR)

TIME ?= 1m
fuzz: ## every decoder of what others send; TIME each, FOCUS
	GO=$(GO) hack/fuzz.sh $(TIME) '$(FOCUS)'

critest: setup build test-images ## the CRI validation suite against the agent's runtime
	$(GO) build -o bin/critest-rig ./tests/critest
	GO=$(GO) bin/critest-rig

NODES ?= 2
JOBS  ?= 4
CONFORMANCE = GO=$(GO) FOCUS='$(FOCUS)' SKIP='$(SKIP)' LABELS='$(LABELS)' bin/conformance-rig -nodes $(NODES) -jobs $(JOBS)

conformance: bin/conformance-rig ## upstream's conformance specs, or those with LABELS; FOCUS, SKIP, NODES, JOBS, ARGS
	$(CONFORMANCE) $(ARGS)

conformance-failed: bin/conformance-rig ## those that failed or did not run the last time
	$(CONFORMANCE) -failed -missing

conformance-build: bin/conformance-rig ## only build the suite and its images
	$(CONFORMANCE) -build

conformance-subset: bin/conformance-rig ## those that have to pass
	$(CONFORMANCE) -labels '' -list tests/conformance/ci-subset.txt

node-suite: bin/conformance-rig ## upstream's suite of nodes, e2e_node, on one node; FOCUS, SKIP, LABELS, JOBS, ARGS
	$(CONFORMANCE) -node $(ARGS)

netpol-conformance: bin/conformance-rig ## network-policy-api's suite of ClusterNetworkPolicies; FOCUS of its tests, NODES, ARGS
	$(CONFORMANCE) -netpol -report bin/conformance/netpol $(ARGS)

gateway-conformance: build images ## the Gateway API's suite v1.6.0; FOCUS one test, ARGS
	$(GO) build -o bin/gateway-rig ./tests/gateway
	GO=$(GO) FOCUS='$(FOCUS)' bin/gateway-rig $(ARGS)

# Neither clouds nor NFS can be had where this runs.
csi-e2e: LABELS = storage
csi-e2e: SKIP = Driver: (azure|cinder|nfs|vsphere)|AWS|\] NFS|PersistentVolumes NFS
csi-e2e: bin/conformance-rig ## upstream's specs of storage on machines with real drivers; ARCHIVES, FOCUS, JOBS, ARGS
	ARCHIVES='$(ARCHIVES)' $(CONFORMANCE) $(ARGS)

csi-sanity: bin/shoal-csi-local bin/csi-sanity ## the suite of CSI drivers against the one in the box, on each file system; ARGS
	$(GO) build -o bin/csi-sanity-rig ./tests/csisanity
	bin/csi-sanity-rig $(ARGS)

bin/shoal-csi-local: FORCE
	$(GO) build -ldflags "$(LDFLAGS)" -o $@ ./csi/local/shoal-csi-local
bin/csi-sanity: Makefile
	GOBIN=$(CURDIR)/bin $(GO) install github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.6.0

s3: bin/versitygw ## snapshots in a real S3 service
	SHOAL_S3_GATEWAY=$(CURDIR)/bin/versitygw $(GO) test -count=1 -v ./coordinator/snapshots

bin/versitygw: Makefile
	GOBIN=$(CURDIR)/bin $(GO) install github.com/versity/versitygw/cmd/versitygw@v1.8.0

bin/conformance-rig: setup build images test-images kubectl FORCE
	$(GO) build -o $@ ./tests/conformance

fleet: build bin/share test-images kubectl ## whole machines with systemd: nspawn, and other kernels in QEMU (cgroup v2, SELinux, quotas, SCTP, a clock that is set); SCENARIO=
	@hack/setup.sh machines $(if $(filter-out cgroup2 selinux quotas sctp jumps,$(SCENARIO)),,virtual)
	$(GO) build -o bin/fleet-rig ./tests/fleet
	bin/fleet-rig -go $(GO) -only '$(SCENARIO)' $(if $(FROM),-from $(FROM))

chaos: build bin/share test-images kubectl ## bad things happen to five machines under load; MINUTES, SEED
	@hack/setup.sh machines
	$(GO) build -o bin/fleet-rig ./tests/fleet
	bin/fleet-rig -go $(GO) -only chaos -chaos-time $(or $(MINUTES),10)m $(if $(SEED),-seed $(SEED))

install: build bin/share ## install programs, units and default configuration below DESTDIR
	@hack/install.sh $(DESTDIR)

deb rpm: build bin/share ## pack what `make install` installs; VERSION, GOARCH
	@GO=$(GO) hack/package.sh $@ '$(VERSION)'

# Completions and manual pages, made of the commands themselves by this machine,
# whatever the programs are built for.
bin/share: FORCE
	@export SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)}; \
	for p in agent/shoal agent coordinator; do GOARCH='' $(GO) run -tags manual -ldflags '-s -w' ./$$p manual $@ || exit; done

lint: ## gofmt, house rules, vet, staticcheck
	@hack/lint.sh

bench: setup build images ## measure speed and weight; prints its tables, then what policies cost; ARGS
	$(GO) run ./tests/bench $(ARGS)
	$(if $(ARGS),,$(GO) test -run '^$$' -bench . ./agent/policy)

gossip-bench: setup ## deaths, returns and false alarms in a gossip of many members in one process; ARGS
	$(GO) run ./tests/gossipbench $(ARGS)

gossip-virtual: ## the same in virtual time, whatever else this machine does; ARGS='-members 500 -deaths 20 -scenario deaths'
	$(GO) test ./tests/gossipbench -run TestVirtualFigures -count 1 -timeout 0 $(or $(ARGS),-members 5 -deaths 200 -scenario deaths)

peer-bench: setup build images ## the same workload against Shoal and upstream v1.36.3; ARGS
	$(GO) build -o bin/peer-bench ./tests/peerbench
	GO=$(GO) bin/peer-bench $(ARGS)

api-diff: bin/shoal-coordinator ## the same API requests to Shoal and upstream v1.36.3; SEED, N, ARGS
	$(GO) build -o bin/api-diff ./tests/apidiff
	GO=$(GO) SEED='$(SEED)' N='$(N)' bin/api-diff $(ARGS)

api-diff-replay: bin/shoal-coordinator ## the recorded requests of api-diff, against upstream's recorded answers
	$(GO) build -o bin/api-diff ./tests/apidiff
	bin/api-diff -replay

ecosystem: setup build images test-images kubectl helm ## real software, installed as its users do; ONLY=metrics-server,postgres
	$(GO) build -o bin/ecosystem-rig ./tests/ecosystem
	GO=$(GO) bin/ecosystem-rig -only '$(ONLY)' $(ARGS)

cni-conformance: ONLY = cni-plugins,flannel
cni-conformance: ecosystem ## third-party networks: the reference plugins, flannel by VXLAN and host-gw

clean:
	rm -rf bin

FORCE:
