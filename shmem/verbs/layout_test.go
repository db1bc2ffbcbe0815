package verbs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"
)

// Fields of commands do not overlap within a context, and lie within one word, or are an aligned pair of words.
func TestFields(t *testing.T) {
	for what, list := range map[string][]field{
		"cqc": {cqcRecordValid, cqcCollapsed, cqcIgnore, cqcRecordMemory, cqcLogSize, cqcRegister, cqcEvents, cqcLogPage, cqcRecord},
		"qpc": {qpcService, qpcMigration, qpcPD, qpcMTU, qpcLogMessage, qpcLogSendSize, qpcRegister, qpcRemote, qpcLogReadsOut, qpcRetries, qpcRNRRetries,
			qpcSendPSN, qpcSendCQ, qpcLogReadsIn, qpcAtomicMode, qpcReads, qpcWrites, qpcAtomics, qpcRNRTimer, qpcReceivePSN, qpcReceiveCQ, qpcRecord,
			qpcReceiveType, qpcRecordValid, qpcRecordMemory},
		"ads": {pathPartition, pathGlobal, pathRemoteLID, pathAckTimeout, pathSource, pathHops, pathClass, pathRemoteGID0, pathRemoteGID1, pathECN,
			pathDSCP, pathSourcePort, pathEthPrio, pathService, pathPort, pathMAC0, pathMAC1},
		"cmd_hca_cap": {capLogMaxQPSize, capLogMaxQP, capLogMaxCQSize, capLogReadsOut, capLogReadsIn, capLogMaxMessage, capCQEVersion, capAtomic,
			capOverrunIgnore, capRC},
		"atomic_caps": {capAtomicOperations, capAtomicSizes},
		"create_cq":   {cmdOpcode, cmdModifier, createCQOffset, createCQMemory, createCQValid},
		"create_qp":   {cmdOpcode, cmdModifier, createQPOffset, createQPMemory, createQPValid},
		"modify_qp":   {cmdOpcode, cmdModifier, modifyQP, modifyOptional},
	} {
		taken := map[int]string{}
		for _, f := range list {
			if f.width != 64 && f.bit/32 != (f.bit+f.width-1)/32 || f.width == 64 && f.bit%32 != 0 {
				t.Errorf("%s.%s: %d bits from %#x cross a word", what, f.name, f.width, f.bit)
			}
			for bit := f.bit; bit < f.bit+f.width; bit++ {
				if other, ok := taken[bit]; ok {
					t.Fatalf("%s.%s and %s share bit %#x", what, f.name, other, bit)
				}
				taken[bit] = f.name
			}
		}
	}
}

// What is set is what is got, and nothing else changes.
func TestSetAndGet(t *testing.T) {
	for _, f := range []field{{"first", 0, 1}, {"last", 31, 1}, {"middle", 0x6b, 5}, {"word", 0x40, 32}, {"pair", 0x60, 64}, {"three bytes", 0x28, 24}} {
		for _, background := range []byte{0, 0xff} {
			command := make([]byte, 64)
			for i := range command {
				command[i] = background
			}
			value := uint64(0xa5a5a5a5a5a5a5a5) >> (64 - f.width)
			set(command, 64, f, value)
			if got := get(command, 64, f); got != value {
				t.Errorf("%s: %#x became %#x", f.name, value, got)
			}
			set(command, 64, f, ^uint64(0)*uint64(background&1))
			for i, b := range command {
				if b != background {
					t.Errorf("%s: byte %d changed to %#x", f.name, i, b)
				}
			}
		}
	}
}

// The structs of C are as in the headers of rdma-core, where these are installed.
func TestStructsAreThoseOfTheHeaders(t *testing.T) {
	if _, err := os.Stat("/usr/include/infiniband/mlx5dv.h"); err != nil {
		t.Skip("rdma-core's headers are not installed")
	}
	var b strings.Builder
	b.WriteString("#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n")
	check := func(expression string, value uintptr) {
		fmt.Fprintf(&b, "_Static_assert(%s == %d, \"%s\");\n", expression, value, strings.ReplaceAll(expression, "\"", ""))
	}
	at := func(c, field string, offset uintptr) { check(fmt.Sprintf("offsetof(%s, %s)", c, field), offset) }
	var port portAttr
	check("sizeof(struct ibv_port_attr) <= "+fmt.Sprint(unsafe.Sizeof(port)), 1)
	at("struct ibv_port_attr", "state", unsafe.Offsetof(port.state))
	at("struct ibv_port_attr", "active_mtu", unsafe.Offsetof(port.activeMTU))
	at("struct ibv_port_attr", "gid_tbl_len", unsafe.Offsetof(port.gids))
	at("struct ibv_port_attr", "lid", unsafe.Offsetof(port.lid))
	at("struct ibv_port_attr", "active_width", unsafe.Offsetof(port.width))
	at("struct ibv_port_attr", "active_speed", unsafe.Offsetof(port.speed))
	at("struct ibv_port_attr", "link_layer", unsafe.Offsetof(port.link))
	var mr memoryRegion
	at("struct ibv_mr", "lkey", unsafe.Offsetof(mr.lkey))
	at("struct ibv_mr", "rkey", unsafe.Offsetof(mr.rkey))
	var ah ahAttr
	check("sizeof(struct ibv_ah_attr)", unsafe.Sizeof(ah))
	at("struct ibv_ah_attr", "grh.dgid", unsafe.Offsetof(ah.gid))
	at("struct ibv_ah_attr", "grh.flow_label", unsafe.Offsetof(ah.flow))
	at("struct ibv_ah_attr", "grh.sgid_index", unsafe.Offsetof(ah.gidIndex))
	at("struct ibv_ah_attr", "grh.hop_limit", unsafe.Offsetof(ah.hops))
	at("struct ibv_ah_attr", "grh.traffic_class", unsafe.Offsetof(ah.class))
	at("struct ibv_ah_attr", "dlid", unsafe.Offsetof(ah.lid))
	at("struct ibv_ah_attr", "sl", unsafe.Offsetof(ah.sl))
	at("struct ibv_ah_attr", "is_global", unsafe.Offsetof(ah.global))
	at("struct ibv_ah_attr", "port_num", unsafe.Offsetof(ah.port))
	var ca contextAttr
	check("sizeof(struct mlx5dv_context_attr)", unsafe.Sizeof(ca))
	at("struct mlx5dv_context_attr", "comp_mask", unsafe.Offsetof(ca.mask))
	var in umemIn
	check("sizeof(struct mlx5dv_devx_umem_in)", unsafe.Sizeof(in))
	at("struct mlx5dv_devx_umem_in", "size", unsafe.Offsetof(in.size))
	at("struct mlx5dv_devx_umem_in", "access", unsafe.Offsetof(in.access))
	at("struct mlx5dv_devx_umem_in", "pgsz_bitmap", unsafe.Offsetof(in.pageSizes))
	at("struct mlx5dv_devx_umem_in", "comp_mask", unsafe.Offsetof(in.mask))
	at("struct mlx5dv_devx_umem_in", "dmabuf_fd", unsafe.Offsetof(in.fd))
	var u uar
	at("struct mlx5dv_devx_uar", "reg_addr", unsafe.Offsetof(u.register))
	at("struct mlx5dv_devx_uar", "base_addr", unsafe.Offsetof(u.base))
	at("struct mlx5dv_devx_uar", "page_id", unsafe.Offsetof(u.page))
	check("sizeof(struct mlx5dv_pd)", unsafe.Sizeof(dvPD{}))
	check("sizeof(struct mlx5dv_ah)", unsafe.Sizeof(dvAH{}))
	var o dvObjects
	check("sizeof(struct mlx5dv_obj)", unsafe.Sizeof(o))
	at("struct mlx5dv_obj", "ah", unsafe.Offsetof(o.ah))
	at("struct mlx5dv_obj", "pd", unsafe.Offsetof(o.pd))
	at("struct mlx5_wqe_av", "rmac", vectorMAC)
	check("MLX5DV_OBJ_AH", objectAH)
	check("MLX5DV_OBJ_PD", objectPD)
	check("MLX5DV_CONTEXT_FLAGS_DEVX", contextDevX)
	check("MLX5DV_UMEM_MASK_DMABUF", umemDMABuf)
	check("MLX5DV_UAR_ALLOC_TYPE_BF", uarCombining)
	check("MLX5DV_UAR_ALLOC_TYPE_NC", uarNotCached)
	check("IBV_PORT_ACTIVE", portActive)
	check("IBV_LINK_LAYER_ETHERNET", linkEthernet)
	file := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-fsyntax-only", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
