# The client libraries of the software GPU. A makefile that includes this one sets
#   SIMC     this directory            SIMC_OUT   where the libraries go
# and may set CC, SIMC_CFLAGS and SIMC_DEFS (empty with a sanitizer, whose symbols come with the program). It gets the targets $(SIMC_OUT)/libcuda.so.1 and $(SIMC_OUT)/libnvidia-ml.so.1.

SIMC_CFLAGS ?= -std=c11 -O2 -g1 -Wall -Wextra -Werror
SIMC_DEFS ?= -Wl,-z,defs
SIMC_CUDA := $(addprefix $(SIMC)/,channel.c connection.c print.c init.c gate.c checkpoint.c checkpoint_call.c management.c ctx.c \
	hostmem.c memory.c copy.c launch.c module.c stream.c graph.c rpc_gen.c exports_gen.c tables_gen.c)
SIMC_NVML := $(addprefix $(SIMC)/,channel.c connection.c print.c nvml.c nvml_process.c nvml_topology.c nvml_mig.c nvml_exports_gen.c rpc_nvml_gen.c)
SIMC_HEADERS := $(wildcard $(SIMC)/*.h $(SIMC)/../../tenant/abi/include/*.h)
SIMC_LINK = $(CC) $(SIMC_CFLAGS) -fPIC -I$(SIMC) -I$(SIMC)/../../tenant/abi/include -shared -pthread \
	-Wl,-Bsymbolic $(SIMC_DEFS) -Wl,-z,now -Wl,-z,nodelete -Wl,--version-script=$(1) -Wl,-soname,$(@F) -o $@ $(2) -ldl

$(SIMC_OUT)/libcuda.so.1: $(SIMC_CUDA) $(SIMC_HEADERS) $(SIMC)/libcuda.map
	@mkdir -p $(@D)
	$(call SIMC_LINK,$(SIMC)/libcuda.map,$(SIMC_CUDA))

$(SIMC_OUT)/libnvidia-ml.so.1: $(SIMC_NVML) $(SIMC_HEADERS) $(SIMC)/libnvidia-ml.map
	@mkdir -p $(@D)
	$(call SIMC_LINK,$(SIMC)/libnvidia-ml.map,$(SIMC_NVML))
