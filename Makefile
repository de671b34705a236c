# A thin front of ci/*.sh, which do the work and say how in their first lines.
.PHONY: help test full lint interop cover virtual ids servers quickstart

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 12

test: ## install what the tests need, run everything
	ci/test.sh

full: ## the same on all servers and versions of Redisson, with full counts: hours
	WATCHLOCK_FULL=1 ci/test.sh

lint: ## go vet, golangci-lint, gofumpt, shellcheck
	ci/lint.sh

interop: ## locks shared with Redisson on the JVM, NestJS and others, which it installs and builds
	ci/interop.sh

cover: ## all tests under the race detector, then coverage
	ci/test.sh prepare unit cover

virtual: ## the tests in virtual time, 5 times
	ci/virtual.sh

ids: ## docs/proofs.md names a test for each id
	ci/ids.sh

servers: ## Redis 7.0, Redis 8.6 and Valkey 9.1 for the tests
	ci/servers.sh

quickstart: ## the first example, on an embedded server
	go run -C examples ./quickstart
