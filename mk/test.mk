# Programs of the tests, and the targets that run them (included by the Makefile).
.PHONY: check test test-fresh test-aarch64 test-frameworks test-peers seeds soak

$(UNIT): $(call obj,$(UNIT_SRC)) $(UNIT_TRAIN) $(STATIC)
	$(call say,LD,$@)$(CC) -o $@ $^ $(LINK) $(TRAIN_LIBS) $(LIBS) -rdynamic
# The stub driver and the mock of NCCL where libravel looks for modules: for tests above the C API. They need the host's driver.
$(BUILD)/libravel_stub.so: $(call obj,tests/stub/module.c tests/unit/stub_driver.c tests/unit/mock_nccl.c) $(STATIC)
	$(call say,LD,$@)$(CC) -shared -o $@ $^ $(LINK) $(LIBS) -Wl,--exclude-libs,ALL
# A GPU without a GPU where the trainer looks for CUDA's kernels, the driver and NCCL: host code that touches a block crashes.
$(BUILD)/libravel_train_stub.so: $(call obj,tests/stub/train_set.c tests/stub/gpu.c tests/stub/nccl.c) $(TRAIN) $(STATIC)
	$(call say,LD,$@)$(CC) -shared -o $@ $^ $(LINK) $(LIBS) -Wl,--exclude-libs,ALL
# The communicators' test body under mpirun.
$(BUILD)/mpi-ranks: $(call obj,tests/mpi/mpi_ranks.c tests/unit/comm_body.c tests/unit/comm_try.c) $(STATIC)
	$(call say,LD,$@)$(CC) -o $@ $^ $(LINK) $(LIBS) -rdynamic
$(BUILD)/refit-ranks: $(call obj,tests/mpi/refit_ranks.c tests/unit/refit_case.c) $(STATIC)
	$(call say,LD,$@)$(CC) -o $@ $^ $(LINK) $(LIBS) -rdynamic

check:
	@BUILD=$(BUILD) CC="$(CC)" CHECK=1 sh tests/run.sh
test:
	@sh mk/deps.sh test $(BUILD)
	@BUILD=$(BUILD) CC="$(CC)" SUITES="$(SUITES)" sh tests/run.sh

test-fresh:
	@sh mk/deps.sh fresh $(BUILD)
	@SYSTEM="$(SYSTEM)" WHO="$(WHO)" COMMANDS="$(COMMANDS)" SUITES="$(SUITES)" sh mk/fresh.sh $(BUILD)
test-aarch64:
	@sh mk/deps.sh aarch64 $(BUILD)
	@WHOLE=$(WHOLE) TESTS="$(TESTS)" MAKE="$(MAKE)" sh mk/aarch64.sh $(BUILD)
test-frameworks:
	@$(MAKE) --no-print-directory all $(BUILD)/libravel_stub.so
	@sh mk/frameworks.sh $(BUILD)
test-peers: # beside checkouts of the frameworks: CHECKOUTS=folder
	@$(MAKE) --no-print-directory all $(BUILD)/libravel_stub.so
	@sh mk/peers.sh $(BUILD) "$(CHECKOUTS)"

# The quick random tests with SEEDS seeds; and then the long ones once. With RAVEL_ASSERT, as in `make test`.
SEEDS ?= 50
SOAK := $(BUILD)/soak
seeds:
	@$(MAKE) --no-print-directory BUILD=$(SOAK) ASSERT=1 unit
	@UNIT_SECONDS=86400 sh tests/unit/both.sh $(SOAK)/ravel-unit --again $${RAVEL_SEED:-$$(date -u +%Y%m%d)}+$(SEEDS) $(FILTER)
soak: seeds
	@RAVEL_SOAK=1 UNIT_SECONDS=86400 sh tests/unit/both.sh $(SOAK)/ravel-unit $(FILTER)
	@for suite in $(if $(FILTER),,35-mpi 37-refit 58-text 60-train); do \
	    RAVEL_SOAK=1 BUILD=$(SOAK) ASSERT=1 CC="$(CC)" MAKE="$(MAKE)" sh tests/suites/$$suite.sh || exit 1; done
