package driver

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
)

// The image of a process is all that the driver knows of it, in a form that another driver can read. It lies in the
// program's memory, so what is read is hostile: each field is checked before it is used.
//
//	header   magic [8]byte, version u32, CRC of the objects u32, their size u64, size of the sources u64
//	objects  an image in JSON
//	sources  the PTX of all code, in the order of image.Codes
//	pieces   of device memory: physical u32, CRC u32, offset u64, size u64, and so many bytes
//	end      a piece of physical endOfImage whose offset is the number of pieces before it
//
// Numbers are little-endian, sums are CRC-32C. Memory that is all zero is left out. Objects name each other by their
// places in the tables (ref).
const (
	imageMagic   = "lgpuckpt"
	imageVersion = 1
	headerSize   = 32
	pieceHead    = 24
	pieceMost    = 1<<20 - pieceHead // what a piece holds: with its head what crosses to the program at a time
	endOfImage   = ^uint32(0)
	objectsMost  = 64 << 20 // bytes of JSON
	sourcesMost  = 1 << 30  // bytes of PTX
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errImage is wrapped by what is wrong with an image.
var errImage = errors.New("not an image of a process")

// ref is a place in a table of the image, counted from 1; 0 is none.
type ref int

// image is the objects of a process.
type image struct {
	Devices   []deviceImage // of the machine
	Visible   []int         // of Devices, in the order of their ordinals
	Eager     bool          `json:",omitempty"`
	Parts     []partImage   // by device
	Faults    []Result      // by device
	Flags     []uint32      // by device
	GraphHigh []uint64      // by device
	Defaults  []ref         // pools, by device
	Current   []ref         // pools, by device

	NextHandle  uint64
	Free        []rangeImage // addresses
	NextAddress uint64
	Reserved    []rangeImage
	Modes       map[uint64]captureMode `json:",omitempty"`

	Physicals   []physicalImage   `json:",omitempty"`
	Named       []namedImage      `json:",omitempty"` // physical memory with a handle
	Codes       []codeImage       `json:",omitempty"`
	Contexts    []contextImage    `json:",omitempty"`
	Streams     []streamImage     `json:",omitempty"`
	Pools       []poolImage       `json:",omitempty"`
	Allocations []allocationImage `json:",omitempty"`
	Libraries   []libraryImage    `json:",omitempty"`
	Modules     []moduleImage     `json:",omitempty"`
	Functions   []functionImage   `json:",omitempty"`
	Points      []pointImage      `json:",omitempty"`
	Events      []eventImage      `json:",omitempty"`
	Arrays      []arrayImage      `json:",omitempty"`
	Mipmaps     []mipmapImage     `json:",omitempty"`
	Users       []userImage       `json:",omitempty"`
	Graphs      []graphImage      `json:",omitempty"`
	AllocNodes  []allocNodeImage  `json:",omitempty"`
	FreeNodes   []freeNodeImage   `json:",omitempty"`
	Memory      []ref             `json:",omitempty"` // nodes whose addresses are known: Process.graphMemory
	Execs       []execImage       `json:",omitempty"`
	Captures    []captureImage    `json:",omitempty"`
	Linkers     []linkerImage     `json:",omitempty"`
}

// deviceImage says which device it was, and of what chip: only such a one can take its place.
type deviceImage struct {
	UUID   wire.CUuuid
	Name   string
	Units  int
	MHz    float64
	Memory uint64
	Limits hw.Limits
}

type partImage struct {
	Named bool  `json:",omitempty"`
	Units []int `json:",omitempty"`
	Count int   `json:",omitempty"`
}

// rangeImage is size bytes from base on.
type rangeImage struct{ Base, Size uint64 }

type physicalImage struct {
	Dev         int
	Size        uint64
	HandleTypes uint32 `json:",omitempty"` // and what follows: as cuMemCreate was asked for
	Compression uint8  `json:",omitempty"`
	RDMA        uint8  `json:",omitempty"`
	Usage       uint16 `json:",omitempty"`
}

type namedImage struct {
	Handle   uint64
	Physical ref
	Count    int
}

type codeImage struct {
	Size    uint64
	MaxRegs int `json:",omitempty"`
	Units   []unitImage
}

type unitImage struct {
	Name string
	Size int // of the source
}

// contextImage with Gone is a context that was destroyed and of which graphs still speak.
type contextImage struct {
	Handle      uint64
	ID          uint64
	Dev         int
	Gone        bool       `json:",omitempty"`
	Primary     bool       `json:",omitempty"`
	Refs        int        `json:",omitempty"`
	Flags       uint32     `json:",omitempty"`
	Fault       Result     `json:",omitempty"`
	Cost        ref        `json:",omitempty"` // physical
	Stacks      ref        `json:",omitempty"` // physical
	Arena       arenaImage // of the context
	Peers       []ref      `json:",omitempty"`
	Legacy      ref        `json:",omitempty"`
	Threads     map[uint64]ref
	Streams     []ref
	Output      uint64
	Prints      bool `json:",omitempty"`
	Limits      [7]uint64
	CacheConfig int32 `json:",omitempty"`
	Slice       int64 `json:",omitempty"` // ns of its time slice; 0: the device's
	Modules     []ref `json:",omitempty"`
}

type arenaImage struct {
	Chunks []chunkImage `json:",omitempty"`
}

type chunkImage struct {
	Base     uint64
	Physical ref
	Free     []rangeImage `json:",omitempty"`
}

type streamImage struct {
	Handle   uint64 `json:",omitempty"`
	ID       uint64
	Context  ref
	Flags    uint32                    `json:",omitempty"`
	Priority int                       `json:",omitempty"`
	Attrs    [4]wire.CUstreamAttrValue // as the program set them
	Capture  ref                       `json:",omitempty"`
	Deps     []nodeRef                 `json:",omitempty"`
}

type poolImage struct {
	Handle    uint64
	Dev       int
	Arena     arenaImage
	Access    []access // by device
	Limit     uint64   `json:",omitempty"`
	Threshold uint64   `json:",omitempty"`
	Reuse     [3]uint64
	UsedHigh  uint64
	ResvHigh  uint64
	Shareable bool `json:",omitempty"`
	Builtin   bool `json:",omitempty"`
	Destroyed bool `json:",omitempty"`
}

type allocationImage struct {
	Type       memType
	Base, Size uint64
	ID         uint64
	Flags      uint32     `json:",omitempty"`
	SyncOps    bool       `json:",omitempty"`
	Dev        int        `json:",omitempty"` // -1: none
	Context    ref        `json:",omitempty"`
	Pool       ref        `json:",omitempty"`
	Physical   ref        `json:",omitempty"`
	Access     []access   `json:",omitempty"` // by device, of a mapping
	Pages      uint64     `json:",omitempty"` // bytes of host memory
	ReadMostly bool       `json:",omitempty"`
	Preferred  location   `json:",omitempty"`
	Prefetch   location   `json:",omitempty"`
	AccessedBy []location `json:",omitempty"`
}

type libraryImage struct {
	Handle  uint64
	Code    ref
	Kernels map[string]libraryKernel
}

type libraryKernel struct {
	Handle     uint64
	MaxDynamic int
}

type moduleImage struct {
	Handle  uint64 `json:",omitempty"` // 0: unloaded, and a graph still launches its code
	Context ref
	Code    ref
	Library ref                   `json:",omitempty"`
	Memory  uint64                `json:",omitempty"` // address of its allocation
	Globals map[string]rangeImage `json:",omitempty"`
}

type functionImage struct {
	Handle     uint64 `json:",omitempty"`
	Module     ref
	Name       string
	MaxDynamic int
	Carveout   int32
}

// pointImage is what an event has recorded: Age ns of device time before the checkpoint.
type pointImage struct {
	Recorded bool `json:",omitempty"`
	Worked   bool `json:",omitempty"`
	Dev      int
	Age      int64
}

type eventImage struct {
	Handle  uint64
	Context ref
	Flags   uint32
	Point   ref
	Capture ref       `json:",omitempty"`
	Deps    []nodeRef `json:",omitempty"`
}

type arrayImage struct {
	Handle     uint64
	Context    ref
	Desc       wire.CUDA_ARRAY3D_DESCRIPTOR
	Allocation uint64 `json:",omitempty"` // its address; 0 for a level of a mipmapped array
	Base       uint64
}

type mipmapImage struct {
	Handle     uint64
	Context    ref
	Desc       wire.CUDA_ARRAY3D_DESCRIPTOR
	Allocation uint64
	Levels     []ref
}

type userImage struct {
	Handle       uint64
	Ptr, Destroy wire.HostAddr
	Refs         uint32
}

// nodeRef is a node by its graph and its place there.
type nodeRef struct {
	Graph ref
	Node  int
}

type graphImage struct {
	Handle  uint64 `json:",omitempty"`
	Nodes   []nodeImage
	Objects map[ref]uint32 `json:",omitempty"`
}

type nodeImage struct {
	Handle   uint64   `json:",omitempty"`
	In       []int    `json:",omitempty"`
	Disabled bool     `json:",omitempty"`
	Origin   *nodeRef `json:",omitempty"`
	Op       opImage
}

// opImage is an op: one of the fields, or none for one that does nothing.
type opImage struct {
	Kernel *kernelImage `json:",omitempty"`
	Copy   *copyImage   `json:",omitempty"`
	Fill   *fillImage   `json:",omitempty"`
	Host   *hostImage   `json:",omitempty"`
	MemOps *memopsImage `json:",omitempty"`
	Child  ref          `json:",omitempty"` // graph
	Alloc  ref          `json:",omitempty"`
	Free   ref          `json:",omitempty"`
	Record ref          `json:",omitempty"` // point
	Wait   ref          `json:",omitempty"` // point
}

type kernelImage struct {
	Function    ref
	Grid, Block [3]uint32
	Shared      uint32
	Params      []byte
	Cooperative bool   `json:",omitempty"`
	Priority    *int32 `json:",omitempty"`
	Stream      int    `json:",omitempty"`
	Attrs       []wire.CUlaunchAttribute
	Kern        uint64 `json:",omitempty"`
}

type copyImage struct {
	Dst, Src             sideImage
	Width, Height, Depth uint64
	Params               wire.CUDA_MEMCPY3D
	Context              ref `json:",omitempty"`
}

type sideImage struct {
	Addr, Pitch, Slice uint64
	Pageable, Device   bool
}

type fillImage struct {
	Context ref `json:",omitempty"`
	Params  wire.CUDA_MEMSET_NODE_PARAMS
}

type hostImage struct {
	Params   wire.CUDA_HOST_NODE_PARAMS
	Callback bool   `json:",omitempty"`
	Stream   uint64 `json:",omitempty"`
}

type memopsImage struct {
	Context ref `json:",omitempty"`
	Raw     []wire.CUstreamBatchMemOpParams
	Flag    uint32
}

type allocNodeImage struct {
	Dev        int
	Addr, Size uint64
	Props      wire.CUmemPoolProps
	Live       bool `json:",omitempty"`
	Uses       int  `json:",omitempty"`
}

type freeNodeImage struct {
	Addr uint64
	From ref `json:",omitempty"`
}

type execImage struct {
	Handle uint64
	Graph  ref
	Flags  uint64
}

type captureImage struct {
	ID      uint64
	Graph   ref
	Origin  ref // stream; 0 for a capture that is over and whose stream is gone
	Mode    captureMode
	Thread  uint64
	Streams []ref
	Invalid bool `json:",omitempty"`
	Over    bool `json:",omitempty"`
	Own     bool `json:",omitempty"`
}

type linkerImage struct {
	Handle  uint64
	MaxRegs int
	Units   []linkerUnit
	Image   []byte
}

type linkerUnit struct {
	Name   string
	Source []byte
}

// encode is the beginning of an image: header and objects. The sources and the pieces follow.
func (img *image) encode(sources uint64) ([]byte, error) {
	objects, err := json.Marshal(img)
	if err != nil {
		return nil, fmt.Errorf("write the objects of a process: %w", err)
	}
	if len(objects) > objectsMost || sources > sourcesMost {
		return nil, fmt.Errorf("%d bytes of objects and %d of source are too many", len(objects), sources)
	}
	b := append(make([]byte, 0, headerSize+len(objects)), imageMagic...)
	b = binary.LittleEndian.AppendUint32(b, imageVersion)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(objects, castagnoli))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(objects)))
	b = binary.LittleEndian.AppendUint64(b, sources)
	return append(b, objects...), nil
}

// header is the beginning of an image.
type header struct {
	sum              uint32
	objects, sources uint64
}

func parseHeader(b []byte) (h header, err error) {
	if len(b) < headerSize || string(b[:8]) != imageMagic {
		return h, fmt.Errorf("%w: it does not begin as one", errImage)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != imageVersion {
		return h, fmt.Errorf("%w: version %d, and this is version %d", errImage, v, imageVersion)
	}
	h = header{binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])}
	if h.objects > objectsMost || h.sources > sourcesMost {
		return h, fmt.Errorf("%w: %d bytes of objects and %d of source", errImage, h.objects, h.sources)
	}
	return h, nil
}

// parseObjects reads the objects of an image.
func (h header) parseObjects(b []byte) (*image, error) {
	if sum := crc32.Checksum(b, castagnoli); sum != h.sum {
		return nil, fmt.Errorf("%w: the sum of the objects is %#x, not %#x", errImage, sum, h.sum)
	}
	img := &image{}
	if err := json.Unmarshal(b, img); err != nil {
		return nil, fmt.Errorf("%w: %w", errImage, err)
	}
	return img, nil
}

// piece is the head of a part of device memory.
type piece struct {
	physical, sum uint32
	offset, size  uint64
}

func (p piece) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, p.physical)
	b = binary.LittleEndian.AppendUint32(b, p.sum)
	b = binary.LittleEndian.AppendUint64(b, p.offset)
	return binary.LittleEndian.AppendUint64(b, p.size)
}

func parsePiece(b []byte) piece {
	return piece{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:]),
		binary.LittleEndian.Uint64(b[16:])}
}
