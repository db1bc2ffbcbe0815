package verbs

import "encoding/binary"

// field is a field of a command or context of the device's programming interface: bits counted from the most
// significant of the first byte. Widths are at most 64, and fields of 32 bits and less lie within one big-endian word
// of 32.
//
// Names, offsets and widths are facts of include/linux/mlx5/mlx5_ifc.h of Linux (GPL-2.0 or BSD), the same in
// rdma-core's providers/mlx5/mlx5_ifc.h and DPDK's mlx5_prm.h (BSD-3-Clause).
type field struct {
	name       string
	bit, width int
}

// Operations of commands.
const (
	opQueryCapabilities = 0x100
	opCreateCQ          = 0x400
	opCreateQP          = 0x500
	opReset2Init        = 0x502
	opInit2RTR          = 0x503
	opRTR2RTS           = 0x504
)

// Sizes of commands and answers in bytes.
const (
	queryIn      = 0x10
	queryOut     = 0x10 + 0x1000 // the header and one set of capabilities
	createCQIn   = 0x110         // without page list
	createQPIn   = 0x110
	modifyQPIn   = 0x110
	answer       = 0x10 // of all but queryOut
	capabilities = 0x10 * 8
)

// Fields of every command and answer.
var (
	cmdOpcode   = field{"opcode", 0x00, 16}
	cmdModifier = field{"op_mod", 0x30, 16}
	outStatus   = field{"status", 0x00, 8}
	outSyndrome = field{"syndrome", 0x20, 32}
)

// Sets of capabilities, as op_mod: type<<1 | 1 for the current values.
const (
	capsGeneral = 0<<1 | 1
	capsAtomic  = 3<<1 | 1
)

// cmd_hca_cap: general capabilities.
var (
	capLogMaxQPSize  = field{"log_max_qp_sz", 0x88, 8}
	capLogMaxQP      = field{"log_max_qp", 0x9b, 5}
	capLogMaxCQSize  = field{"log_max_cq_sz", 0xc8, 8}
	capLogReadsOut   = field{"log_max_ra_req_qp", 0x14a, 6}
	capLogReadsIn    = field{"log_max_ra_res_qp", 0x15a, 6}
	capLogMaxMessage = field{"log_max_msg", 0x1c3, 5}
	capCQEVersion    = field{"cqe_version", 0x1fc, 4}
	capAtomic        = field{"atomic", 0x21e, 1}
	capOverrunIgnore = field{"cq_oi", 0x220, 1}
	capRC            = field{"rc", 0x23f, 1}
)

// atomic_caps.
var (
	capAtomicOperations = field{"atomic_operations", 0x90, 16}
	capAtomicSizes      = field{"atomic_size_qp", 0xb0, 16}
)

// Bits of atomic_operations; those of atomic_size_qp are the sizes' logarithms.
const (
	atomicCompareSwap = 1 << 0
	atomicFetchAdd    = 1 << 1
	atomicMaskedSwap  = 1 << 2
	atomicMaskedAdd   = 1 << 3
)

// cqc, at cqContext in create_cq_in.
const cqContext = 0x80

var (
	cqcRecordValid  = field{"dbr_umem_valid", 0x06, 1}
	cqcCollapsed    = field{"cc", 0x0b, 1}
	cqcIgnore       = field{"oi", 0x0e, 1}
	cqcRecordMemory = field{"dbr_umem_id", 0x20, 32}
	cqcLogSize      = field{"log_cq_size", 0x63, 5}
	cqcRegister     = field{"uar_page", 0x68, 24}
	cqcEvents       = field{"c_eqn", 0xb8, 8}
	cqcLogPage      = field{"log_page_size", 0xc3, 5}
	cqcRecord       = field{"dbr_addr", 0x1c0, 64}

	createCQOffset = field{"cq_umem_offset", 0x280, 64}
	createCQMemory = field{"cq_umem_id", 0x2c0, 32}
	createCQValid  = field{"cq_umem_valid", 0x2e0, 1}
	outCQ          = field{"cqn", 0x48, 24}
)

// qpc, at qpContext in create_qp_in and in the commands that modify.
const qpContext = 0xc0

var (
	qpcService      = field{"st", 0x08, 8}
	qpcMigration    = field{"pm_state", 0x13, 2}
	qpcPD           = field{"pd", 0x28, 24}
	qpcMTU          = field{"mtu", 0x40, 3}
	qpcLogMessage   = field{"log_msg_max", 0x43, 5}
	qpcLogSendSize  = field{"log_sq_size", 0x51, 4}
	qpcRegister     = field{"uar_page", 0x68, 24}
	qpcRemote       = field{"remote_qpn", 0xa8, 24}
	qpcLogReadsOut  = field{"log_sra_max", 0x388, 3}
	qpcRetries      = field{"retry_count", 0x38d, 3}
	qpcRNRRetries   = field{"rnr_retry", 0x390, 3}
	qpcSendPSN      = field{"next_send_psn", 0x3c8, 24}
	qpcSendCQ       = field{"cqn_snd", 0x3e8, 24}
	qpcLogReadsIn   = field{"log_rra_max", 0x488, 3}
	qpcAtomicMode   = field{"atomic_mode", 0x48c, 4}
	qpcReads        = field{"rre", 0x490, 1}
	qpcWrites       = field{"rwe", 0x491, 1}
	qpcAtomics      = field{"rae", 0x492, 1}
	qpcRNRTimer     = field{"min_rnr_nak", 0x4a3, 5}
	qpcReceivePSN   = field{"next_rcv_psn", 0x4a8, 24}
	qpcReceiveCQ    = field{"cqn_rcv", 0x4e8, 24}
	qpcRecord       = field{"dbr_addr", 0x500, 64}
	qpcReceiveType  = field{"rq_type", 0x565, 3}
	qpcRecordValid  = field{"dbr_umem_valid", 0x683, 1}
	qpcRecordMemory = field{"dbr_umem_id", 0x720, 32}

	createQPOffset = field{"wq_umem_offset", 0x800, 64}
	createQPMemory = field{"wq_umem_id", 0x840, 32}
	createQPValid  = field{"wq_umem_valid", 0x860, 1}
	outQP          = field{"qpn", 0x48, 24}
	modifyQP       = field{"qpn", 0x48, 24}
	modifyOptional = field{"opt_param_mask", 0x80, 32}
)

// Values of fields.
const (
	serviceRC        = 0
	migrated         = 3
	receiveNone      = 3 // a receive queue of size zero
	atomicMode8      = 3 // up to 8 bytes
	optionalReads    = 1 << 1
	optionalAtomics  = 1 << 2
	optionalWrites   = 1 << 3
	logMessageMax    = 30
	rnrRetriesForAll = 7
	rnrTimer         = 12 // 0.64 ms
)

// ads: the primary address path, at pathContext in qpc.
const pathContext = 0xc0

var (
	pathPartition  = field{"pkey_index", 0x10, 16}
	pathGlobal     = field{"grh", 0x28, 1}
	pathRemoteLID  = field{"rlid", 0x30, 16}
	pathAckTimeout = field{"ack_timeout", 0x40, 5}
	pathSource     = field{"src_addr_index", 0x48, 8}
	pathHops       = field{"hop_limit", 0x58, 8}
	pathClass      = field{"tclass", 0x64, 8}
	pathRemoteGID0 = field{"rgid_rip", 0x80, 64}
	pathRemoteGID1 = field{"rgid_rip", 0xc0, 64}
	pathECN        = field{"ecn", 0x108, 2}
	pathDSCP       = field{"dscp", 0x10a, 6}
	pathSourcePort = field{"udp_sport", 0x110, 16}
	pathEthPrio    = field{"eth_prio", 0x121, 3}
	pathService    = field{"sl", 0x124, 4}
	pathPort       = field{"vhca_port_num", 0x128, 8}
	pathMAC0       = field{"rmac_47_32", 0x130, 16}
	pathMAC1       = field{"rmac_31_0", 0x140, 32}
)

// set writes value into a field of a context that begins at bit at of a command.
func set(command []byte, at int, f field, value uint64) {
	bit := at + f.bit
	if f.width == 64 {
		binary.BigEndian.PutUint64(command[bit/8:], value)
		return
	}
	word := command[bit/32*4:]
	shift := 32 - f.width - bit%32
	mask := uint32(1<<f.width-1) << shift
	old := binary.BigEndian.Uint32(word)
	binary.BigEndian.PutUint32(word, old&^mask|uint32(value)<<shift&mask)
}

// get reads a field.
func get(command []byte, at int, f field) uint64 {
	bit := at + f.bit
	if f.width == 64 {
		return binary.BigEndian.Uint64(command[bit/8:])
	}
	return uint64(binary.BigEndian.Uint32(command[bit/32*4:]) >> (32 - f.width - bit%32) & uint32(1<<f.width-1))
}
