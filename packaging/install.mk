# make install, make uninstall, make packages. The Makefile includes this file.
#
# What an install consists of is written once, under install below: packages and the archive are made from an install
# into build/package/root.

PREFIX ?= /usr/local
DESTDIR ?=
BINDIR := $(PREFIX)/bin
MANDIR := $(PREFIX)/share/man/man1
DOCDIR := $(PREFIX)/share/doc/lgpu
DATADIR := $(PREFIX)/share/lgpu
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d

.PHONY: install uninstall packages image
install:
	test -x bin/lgpu || { echo "bin/lgpu is missing; first, without root: make build" >&2; exit 1; }
	install -d $(addprefix $(DESTDIR),$(BINDIR) $(MANDIR) $(DOCDIR) $(DATADIR) $(UNITDIR) $(SYSUSERSDIR) $(BASHDIR) $(ZSHDIR) $(FISHDIR))
	install -m 0755 bin/lgpu $(DESTDIR)$(BINDIR)/.lgpu.new
	mv -f $(DESTDIR)$(BINDIR)/.lgpu.new $(DESTDIR)$(BINDIR)/lgpu # a new file: the old one may be running
	bin/lgpu man $(DESTDIR)$(MANDIR)
	chmod 0644 $(DESTDIR)$(MANDIR)/lgpu.1 $(DESTDIR)$(MANDIR)/lgpu-*.1
	sed 's|@lgpu@|$(BINDIR)/lgpu|' daemon/systemd/lgpud.service > $(DESTDIR)$(UNITDIR)/lgpud.service
	install -m 0644 daemon/systemd/sysusers.conf $(DESTDIR)$(SYSUSERSDIR)/lgpu.conf
	install -m 0644 LICENSE $(DESTDIR)$(DOCDIR)/LICENSE
	install -m 0644 daemon/metrics/alerts.yaml daemon/metrics/grafana.json $(DESTDIR)$(DATADIR)
	bin/lgpu completion bash > $(DESTDIR)$(BASHDIR)/lgpu
	bin/lgpu completion zsh > $(DESTDIR)$(ZSHDIR)/_lgpu
	bin/lgpu completion fish > $(DESTDIR)$(FISHDIR)/lgpu.fish
	chmod 0644 $(addprefix $(DESTDIR),$(UNITDIR)/lgpud.service $(BASHDIR)/lgpu $(ZSHDIR)/_lgpu $(FISHDIR)/lgpu.fish)

# The state in /var/lib/lgpu, the group lgpu and what runs stay: docs/install.md says how to remove them.
uninstall:
	rm -f $(addprefix $(DESTDIR),$(BINDIR)/lgpu $(MANDIR)/lgpu.1 $(MANDIR)/lgpu-*.1 $(UNITDIR)/lgpud.service \
		$(SYSUSERSDIR)/lgpu.conf $(BASHDIR)/lgpu $(ZSHDIR)/_lgpu $(FISHDIR)/lgpu.fish $(DOCDIR)/LICENSE \
		$(DATADIR)/alerts.yaml $(DATADIR)/grafana.json)
	for dir in $(DESTDIR)$(DOCDIR) $(DESTDIR)$(DATADIR); do ! test -d $$dir || rmdir --ignore-fail-on-non-empty $$dir; done

# Packages are equal, bit for bit, where the binary is: every time in them is that of the commit. nfpm has a module of
# its own, packaging/tools, since it needs more modules than lgpu does.
PACKAGES := build/package
PACKAGE_NAME = lgpu-$(VERSION)-linux-$(shell $(GO) env GOARCH)
packages: build
	rm -rf $(PACKAGES)
	mkdir -p $(PACKAGES)/root
	umask 022 && $(MAKE) install DESTDIR=$(PACKAGES)/root PREFIX=/usr
	$(GOBUILD) -C packaging/tools build -o ../../build/nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm
	for kind in deb rpm; do \
		SOURCE_DATE_EPOCH=$(COMMIT_EPOCH) VERSION=$(VERSION) GOARCH=$$($(GO) env GOARCH) \
			build/nfpm package -f packaging/nfpm.yaml -p $$kind -t $(PACKAGES)/ || exit 1; \
	done
	tar --create --directory=$(PACKAGES)/root --transform='s|^\./usr|$(PACKAGE_NAME)|' --sort=name --owner=0 --group=0 \
		--numeric-owner --mtime=@$(COMMIT_EPOCH) ./usr | gzip -6n > $(PACKAGES)/$(PACKAGE_NAME).tar.gz
	cd $(PACKAGES) && sha256sum *.deb *.rpm *.tar.gz > SHA256SUMS
	ls -l $(PACKAGES)

# An image for the daemon; see docs/install.md for what a container needs. Of the C library it has what the binary and
# NVIDIA's libraries are linked with. A tag can have neither ~ nor +.
DOCKER ?= $(if $(shell command -v docker),docker,podman)
IMAGE := build/image
IMAGE_NAME ?= lgpu:$(subst +,-,$(subst ~,-,$(VERSION)))
image: build
	rm -rf $(IMAGE)
	umask 022 && mkdir -p $(addprefix $(IMAGE)/root/,etc run/lgpu usr/bin var/lib/lgpu) && mkdir -m 1777 $(IMAGE)/root/tmp
	install -m 0755 bin/lgpu $(IMAGE)/root/usr/bin/lgpu
	umask 022 && echo root:x:0:0:root:/: > $(IMAGE)/root/etc/passwd && echo root:x:0: > $(IMAGE)/root/etc/group
	libc=$$(ldd bin/lgpu | sed -n 's|.* => \(/.*libc\.so\.6\) .*|\1|p'); \
	for file in $$(ldd bin/lgpu | grep -o '/[^ ]*') $${libc%/*}/libm.so.6 $${libc%/*}/librt.so.1; do \
		install -D -m 0755 $$file $(IMAGE)/root$$file || exit 1; \
	done
	$(DOCKER) build -f packaging/Dockerfile -t $(IMAGE_NAME) $(IMAGE)

# An image for the nodes of a cluster.
IMAGE_KUBE := build/image-kube
IMAGE_KUBE_NAME ?= $(subst lgpu:,lgpu-kube:,$(IMAGE_NAME))
.PHONY: image-kube
image-kube: build kube
	rm -rf $(IMAGE_KUBE)
	umask 022 && mkdir -p $(IMAGE_KUBE)/root/usr/bin && mkdir -m 1777 $(IMAGE_KUBE)/root/tmp
	install -m 0755 bin/lgpu bin/lgpu-kube $(IMAGE_KUBE)/root/usr/bin/
	$(DOCKER) build -f packaging/Dockerfile.kube -t $(IMAGE_KUBE_NAME) $(IMAGE_KUBE)
