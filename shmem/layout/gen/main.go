// Command gen writes the C headers that lshmem's host and device share: lshmem_state.h from package layout and
// lshmem_mlx5.h from package mlx5.
package main

import (
	"log"
	"os"

	"github.com/lgpu/lgpu/internal/cheader"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/mlx5"
)

var headers = []cheader.Header{
	{
		File: "lshmem_state.h", Source: "./shmem/layout", Prefix: "LSHMEM_", CPlusPlus: true,
		About: "What the host runtime writes and device code reads. Meaning and units of\n// every field: shmem/layout/layout.go.",
		Constants: []cheader.Constant{
			{Name: "STATE_VERSION", Value: uint64(layout.Version)},
			{Name: "INLINE_PEERS", Value: layout.InlinePeers}, {Name: "INLINE_KEYS", Value: layout.InlineKeys},
			{Name: "MAX_NICS", Value: layout.MaxNICs}, {Name: "MAX_TEAMS", Value: layout.MaxTeams},
			{Name: "IBUF_CELL", Value: layout.IbufCell}, {Name: "MIN_DEPTH", Value: layout.MinDepth},
			{Name: "MAX_DEPTH", Value: layout.MaxDepth}, {Name: "MAX_CALL", Value: layout.MaxCall},
			{Name: "PEER_ATOMIC", Value: layout.PeerAtomic},
			{Name: "CHANNELS", Value: layout.Channels}, {Name: "LINE_CHANNELS", Value: layout.LineChannels},
			{Name: "LINE_SPACE", Value: layout.LineSpace}, {Name: "LINE_MINIMUM", Value: layout.LineMinimum},
			{Name: "LINE_MULTIPLE", Value: layout.LineMultiple}, {Name: "TEAM_DIRECT", Value: uint64(layout.TeamDirect)},
			{Name: "STATE_CALLER_WARP", Value: uint64(layout.StateCallerWarp)},
			{Name: "STATE_CALLER_SM", Value: uint64(layout.StateCallerSM)},
			{Name: "QUEUE_HOST_MEMORY", Value: uint64(layout.QueueHostMemory)},
			{Name: "QUEUE_HOST_POSTS", Value: uint64(layout.QueueHostPosts)},
			{Name: "QUEUE_FLUSH", Value: uint64(layout.QueueFlush)},
		},
		Numbers: numbers,
		Types:   []any{layout.Key{}, layout.Local{}, layout.State{}, layout.Queue{}, layout.Team{}, layout.Control{}},
	},
	{
		File: "lshmem_mlx5.h", Source: "./shmem/layout", Prefix: "LSHMEM_MLX5_", CPlusPlus: true,
		About: "The wire format of mlx5 send queues. Meaning and sources: shmem/mlx5/mlx5.go.",
		Constants: []cheader.Constant{
			{Name: "BLOCK_BYTES", Value: mlx5.BlockBytes}, {Name: "SEGMENT_BYTES", Value: mlx5.SegmentBytes},
			{Name: "OP_NOP", Value: mlx5.OpNOP}, {Name: "OP_WRITE", Value: mlx5.OpWrite}, {Name: "OP_READ", Value: mlx5.OpRead},
			{Name: "OP_WRITE_IMM", Value: mlx5.OpWriteImm}, {Name: "OP_SEND", Value: mlx5.OpSend}, {Name: "OP_WAIT", Value: mlx5.OpWait},
			{Name: "OP_COMPARE_SWAP", Value: mlx5.OpCompareSwap}, {Name: "OP_FETCH_ADD", Value: mlx5.OpFetchAdd},
			{Name: "OP_MASKED_SWAP", Value: mlx5.OpMaskedSwap}, {Name: "OP_MASKED_ADD", Value: mlx5.OpMaskedAdd},
			{Name: "OP_DUMP", Value: mlx5.OpDump}, {Name: "MOD_ATOMIC4", Value: mlx5.ModAtomic4},
			{Name: "MOD_ATOMIC8", Value: mlx5.ModAtomic8}, {Name: "INLINE_FLAG", Value: mlx5.InlineFlag},
			{Name: "INDEX_MASK", Value: mlx5.IndexMask}, {Name: "MAX_SEGMENTS", Value: mlx5.MaxSegments},
			{Name: "CTRL_COMPLETION", Value: mlx5.CtrlCompletion}, {Name: "FENCE_SMALL", Value: mlx5.FenceSmall},
			{Name: "FENCE_READS", Value: mlx5.FenceReads}, {Name: "FENCE_STRONG", Value: mlx5.FenceStrong},
			{Name: "FENCE_ALL", Value: mlx5.FenceAll},
			{Name: "COMPLETION_REQUESTER", Value: mlx5.CompletionRequester}, {Name: "COMPLETION_ERROR", Value: mlx5.CompletionError},
			{Name: "COMPLETION_RESP_ERROR", Value: mlx5.CompletionRespError}, {Name: "COMPLETION_INVALID", Value: mlx5.CompletionInvalid},
			{Name: "COMPLETION_HW_SYNDROME_AT", Value: mlx5.CompletionHWSyndrome},
			{Name: "COMPLETION_COUNTER_AT", Value: mlx5.CompletionCounter}, {Name: "COMPLETION_OWNER_AT", Value: mlx5.CompletionOwner},
			{Name: "SYNDROME_LOCAL_QUEUE", Value: mlx5.SyndromeLocalQueue}, {Name: "SYNDROME_LOCAL_PROTECT", Value: mlx5.SyndromeLocalProtect},
			{Name: "SYNDROME_FLUSHED", Value: mlx5.SyndromeFlushed}, {Name: "SYNDROME_REMOTE_REQUEST", Value: mlx5.SyndromeRemoteRequest},
			{Name: "SYNDROME_REMOTE_ACCESS", Value: mlx5.SyndromeRemoteAccess}, {Name: "SYNDROME_REMOTE_OP", Value: mlx5.SyndromeRemoteOp},
			{Name: "SYNDROME_LOCAL_LENGTH", Value: mlx5.SyndromeLocalLength}, {Name: "SYNDROME_NOT_READY", Value: mlx5.SyndromeNotReady}, {Name: "OP_SEND_IMM", Value: mlx5.OpSendImm},
		},
	},
}

// numbers are what functions take and return.
var numbers = []cheader.Constant{
	number("OK", layout.StatusOK), number("ERR_TIMEOUT", layout.StatusTimeout), number("ERR_PEER", layout.StatusPeer),
	number("ERR_QUEUE", layout.StatusQueue), number("ERR_ARGUMENT", layout.StatusArgument),
	number("ERR_MEMORY", layout.StatusMemory), number("ERR_SYSTEM", layout.StatusSystem),
	number("ERR_VERSION", layout.StatusVersion), number("ERR_STATE", layout.StatusState),
	number("ERR_SUPPORT", layout.StatusSupport),

	number("CMP_EQ", layout.CompareEQ), number("CMP_NE", layout.CompareNE), number("CMP_GT", layout.CompareGT),
	number("CMP_LE", layout.CompareLE), number("CMP_LT", layout.CompareLT), number("CMP_GE", layout.CompareGE),
	number("SIGNAL_SET", layout.SignalSet), number("SIGNAL_ADD", layout.SignalAdd),
	number("AMO_SET", layout.AtomicSet), number("AMO_ADD", layout.AtomicAdd), number("AMO_AND", layout.AtomicAnd),
	number("AMO_OR", layout.AtomicOr), number("AMO_XOR", layout.AtomicXor),
	number("AMO_COMPARE_SWAP", layout.AtomicCompareSwap),
	number("INT8", layout.TypeInt8), number("UINT8", layout.TypeUint8), number("INT16", layout.TypeInt16),
	number("UINT16", layout.TypeUint16), number("INT32", layout.TypeInt32), number("UINT32", layout.TypeUint32),
	number("INT64", layout.TypeInt64), number("UINT64", layout.TypeUint64), number("FLOAT16", layout.TypeFloat16),
	number("BFLOAT16", layout.TypeBFloat16), number("FLOAT32", layout.TypeFloat32), number("FLOAT64", layout.TypeFloat64),
	number("TYPES", layout.Types),
	number("SUM", layout.ReduceSum), number("PROD", layout.ReduceProd), number("MIN", layout.ReduceMin),
	number("MAX", layout.ReduceMax), number("AND", layout.ReduceAnd), number("OR", layout.ReduceOr),
	number("XOR", layout.ReduceXor), number("REDUCTIONS", layout.Reductions),
	number("TEAM_WORLD", layout.TeamWorld), number("TEAM_SHARED", layout.TeamShared), number("TEAM_NODE", layout.TeamNode),
	number("TEAM_SAME_MYPE_NODE", layout.TeamSameMyPE), number("TEAM_SAME_GPU", layout.TeamSameGPU),
	number("TEAM_FIRST_OWNED", layout.TeamFirstOwned), number("TEAM_INVALID", layout.TeamInvalid),
	number("PE_ALL", layout.AllPEs),
	number("QP_DEFAULT", layout.QueueDefault), number("QP_ANY", layout.QueueAny),
}

func number[T int32 | uint32](name string, value T) cheader.Constant {
	return cheader.Constant{Name: name, Value: uint64(value)}
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: gen FOLDER")
	}
	if err := cheader.Write(os.Args[1], headers); err != nil {
		log.Fatal(err)
	}
}
