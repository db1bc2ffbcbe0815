package schedule

//go:generate go run ./gen ../../tenant/liblgpu

// Default times of Options, in ns. A tenant without a daemon goes by them as well: gen writes them for C.
const (
	DefaultSlice   = 10_000_000
	DefaultQuantum = 5_000_000
	DefaultBurst   = 20_000_000
)

// ProcessTurn is how long one process of an lgpu keeps the device while others of the same lgpu wait, in ns. The policy
// knows lgpus only; the processes of one take turns within its grants.
const ProcessTurn = 40_000_000
