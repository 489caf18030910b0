# CUDA: the device floor, NCCL, the trainer's kernel set, and what runs on a GPU (included by the Makefile).
.PHONY: without-cuda test-gpu check-gpu bench-gpu

# C files that include CUDA's headers are compiled by $(CC), kernels by nvcc (which makes C++ of them).
NVCC_FLAGS = -O3 -std=c++17 $(CUDA_CODE) -lineinfo -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra \
             -Iinclude -MMD -MP $(if $(WERROR),-Werror all-warnings) $(NVCCFLAGS)
$(BUILD)/obj/src/%.cu.o: src/%.cu
	@mkdir -p $(@D)
	$(call say,NVC,$@)$(NVCC) $(NVCC_FLAGS) -Isrc -c $< -o $@
$(BUILD)/obj/train/%.cu.o: train/%.cu
	@mkdir -p $(@D)
	$(call say,NVC,$@)$(NVCC) $(NVCC_FLAGS) $(CUDNN_INCLUDE) -Isrc -I. -c $< -o $@
$(call obj,$(filter %.c,$(CUDA_SRC)) src/comm/nccl.c): CFLAGS += $(CUDA_INCLUDE)
$(call obj,$(filter %.c,$(TRAIN_CUDA_SRC)) tests/gpu/test_gpu_plans.c): CFLAGS += $(CUDA_INCLUDE) $(CUDNN_INCLUDE)
# The runtime is linked statically: the modules load on a machine without CUDA, and report what is missing.
CUDA_LINK = $(CUDA_LIBS) -lcudart_static -lrt -lstdc++ -ldl $(LINK) -Wl,--exclude-libs,ALL
$(BUILD)/libravel_cuda.so: $(call obj,$(CUDA_SRC))
	$(call say,LD,$@)$(CC) -shared -o $@ $^ $(CUDA_LINK)
$(BUILD)/libravel_nccl.so: $(call obj,src/comm/nccl.c)
	$(call say,LD,$@)$(CC) -shared -o $@ $^ $(CUDA_LINK) -lnccl
$(BUILD)/libravel_train_cuda.so: $(call obj,$(TRAIN_CUDA_SRC))
	$(call say,LD,$@)$(CC) -shared -o $@ $^ $(CUDA_LINK) -lcublasLt $(CUDNN_LIBS)

# Modules of an earlier build would still be found: a build without CUDA has none.
without-cuda:
	@rm -f $(BUILD)/libravel_cuda.so $(BUILD)/libravel_nccl.so $(BUILD)/libravel_train_cuda.so

# Tests and figures that need a GPU: the device's test bodies on CUDA, and its own bench table.
GPU_TEST_SRC  := $(filter-out $(if $(HAVE_CUDNN),,tests/gpu/test_gpu_plans.c),$(wildcard tests/gpu/*.c)) $(addprefix tests/unit/,check.c device_body.c batch_device_body.c refit_case.c refit_device_body.c store.c train_support.c)
GPU_BENCH_SRC := $(wildcard bench/gpu/*.c) bench/bench.c
# One file of the trainer's CUDA set is linked in, for its table of plans.
$(BUILD)/ravel-gpu: $(call obj,$(GPU_TEST_SRC) $(if $(HAVE_CUDNN),train/kernels/cuda/attention_graph.c)) $(TRAIN) $(STATIC)
	$(call say,LD,$@)$(CC) -o $@ $(whole) $(LINK) $(TRAIN_LIBS) $(CUDNN_LIBS) $(LIBS) -rdynamic
$(BUILD)/ravel-bench-gpu: $(call obj,$(GPU_BENCH_SRC)) $(TRAIN) $(STATIC)
	$(call say,LD,$@)$(CC) -o $@ $(whole) $(LINK) $(TRAIN_LIBS) $(LIBS) -rdynamic

# SANITIZER="compute-sanitizer --tool memcheck" runs under a checker.
test-gpu: $(BUILD)/ravel-gpu $(SHARED) $(MODULES)
	@$(SANITIZER) $(BUILD)/ravel-gpu $(or $(FILTER),cuda_)
	@$(if $(FILTER),,$(SANITIZER) $(BUILD)/ravel-gpu gpu_) # apart: its first test forks, which needs a process without CUDA
	@$(if $(FILTER),,$(BUILD)/ravel-gpu fatal_) # apart: it ends the process's CUDA context
	@$(if $(FILTER),,RAVEL_LIBRARY=$(abspath $(SHARED)) python3 tests/gpu/torch_tensors.py) # torch's tensors through the Python package
check-gpu: $(BUILD)/ravel-gpu $(MODULES)
	@BUILD=$(BUILD) LIMIT=$(LIMIT) sh tests/gpu/check.sh $(FILTER)
bench-gpu: $(BUILD)/ravel-bench-gpu $(MODULES)
	@$(BUILD)/ravel-bench-gpu --json $(BUILD)/bench-gpu.json $(if $(FILTER),--filter "$(FILTER)")
