package verbs

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// library is libibverbs and libmlx5. Its functions are called by address: see call and status.
type library struct {
	verbs, mlx5 uintptr // of dlopen

	getDeviceList, freeDeviceList, getDeviceName     uintptr
	closeDevice, allocPD, deallocPD                  uintptr
	queryPort, queryGID                              uintptr
	regMR, regMRIOVA, regDMABuf, deregMR             uintptr // regMRIOVA and regDMABuf may be 0
	createAH, destroyAH                              uintptr
	isSupported, openDevice, initObject              uintptr
	allocUAR, freeUAR, queryEQN                      uintptr
	umemReg, umemRegEx, umemDereg                    uintptr // umemRegEx may be 0
	objCreate, objModify, objDestroy, generalCommand uintptr
}

// load opens the libraries. Where they are not installed, the error is nic.ErrNoDevice.
func load(verbs, mlx5 string) (*library, error) {
	l := &library{}
	var err error
	if l.verbs, err = purego.Dlopen(verbs, purego.RTLD_NOW|purego.RTLD_LOCAL); err != nil {
		return nil, fmt.Errorf("no mlx5 device: %w: %w", nic.ErrNoDevice, err)
	}
	if l.mlx5, err = purego.Dlopen(mlx5, purego.RTLD_NOW|purego.RTLD_LOCAL); err != nil {
		return nil, errors.Join(fmt.Errorf("no mlx5 device: %w: %w", nic.ErrNoDevice, err), l.close())
	}
	for _, s := range []struct {
		library  uintptr
		name     string
		function *uintptr
		optional bool
	}{
		{l.verbs, "ibv_get_device_list", &l.getDeviceList, false},
		{l.verbs, "ibv_free_device_list", &l.freeDeviceList, false},
		{l.verbs, "ibv_get_device_name", &l.getDeviceName, false},
		{l.verbs, "ibv_close_device", &l.closeDevice, false},
		{l.verbs, "ibv_alloc_pd", &l.allocPD, false},
		{l.verbs, "ibv_dealloc_pd", &l.deallocPD, false},
		{l.verbs, "ibv_query_port", &l.queryPort, false},
		{l.verbs, "ibv_query_gid", &l.queryGID, false},
		{l.verbs, "ibv_reg_mr", &l.regMR, false},
		{l.verbs, "ibv_reg_mr_iova2", &l.regMRIOVA, true},  // rdma-core 28
		{l.verbs, "ibv_reg_dmabuf_mr", &l.regDMABuf, true}, // rdma-core 34
		{l.verbs, "ibv_dereg_mr", &l.deregMR, false},
		{l.verbs, "ibv_create_ah", &l.createAH, false},
		{l.verbs, "ibv_destroy_ah", &l.destroyAH, false},
		{l.mlx5, "mlx5dv_is_supported", &l.isSupported, false},
		{l.mlx5, "mlx5dv_open_device", &l.openDevice, false},
		{l.mlx5, "mlx5dv_init_obj", &l.initObject, false},
		{l.mlx5, "mlx5dv_devx_alloc_uar", &l.allocUAR, false},
		{l.mlx5, "mlx5dv_devx_free_uar", &l.freeUAR, false},
		{l.mlx5, "mlx5dv_devx_query_eqn", &l.queryEQN, false},
		{l.mlx5, "mlx5dv_devx_umem_reg", &l.umemReg, false},
		{l.mlx5, "mlx5dv_devx_umem_reg_ex", &l.umemRegEx, true}, // rdma-core 38
		{l.mlx5, "mlx5dv_devx_umem_dereg", &l.umemDereg, false},
		{l.mlx5, "mlx5dv_devx_obj_create", &l.objCreate, false},
		{l.mlx5, "mlx5dv_devx_obj_modify", &l.objModify, false},
		{l.mlx5, "mlx5dv_devx_obj_destroy", &l.objDestroy, false},
		{l.mlx5, "mlx5dv_devx_general_cmd", &l.generalCommand, false},
	} {
		address, err := purego.Dlsym(s.library, s.name)
		if err != nil && !s.optional {
			return nil, errors.Join(fmt.Errorf("this rdma-core lacks %s, which DevX needs (25 or later): %w: %w",
				s.name, nic.ErrNotSupported, err), l.close())
		}
		*s.function = address
	}
	return l, nil
}

// close closes the libraries.
func (l *library) close() error {
	var errs []error
	for _, handle := range []*uintptr{&l.mlx5, &l.verbs} {
		if *handle != 0 {
			errs = append(errs, purego.Dlclose(*handle))
		}
		*handle = 0
	}
	return errors.Join(errs...)
}

// errnoOf calls a C function and returns errno of the thread it ran on as well.
//
//go:uintptrescapes
func errnoOf(function uintptr, arguments ...uintptr) (uintptr, syscall.Errno) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	location := errnoLocation()
	if location == 0 {
		result, _, _ := purego.SyscallN(function, arguments...)
		return result, syscall.EIO
	}
	where, _, _ := purego.SyscallN(location)
	errno := at[int32](where)
	*errno = 0
	result, _, _ := purego.SyscallN(function, arguments...)
	if *errno == 0 {
		return result, syscall.EIO // a function that failed without saying why
	}
	return result, syscall.Errno(*errno)
}

// errnoLocation is the C library's function of that name, 0 where it has none.
var errnoLocation = sync.OnceValue(func() uintptr {
	address, err := purego.Dlsym(purego.RTLD_DEFAULT, "__errno_location")
	if err != nil {
		return 0
	}
	return address
})

// call calls a function whose result is a pointer, or void. Its error means something only where the result says that
// it failed. Pointers to Go memory among the arguments are converted to uintptr in the call itself, so that they stay
// where they are until it returns.
//
//go:uintptrescapes
func call(function uintptr, arguments ...uintptr) (uintptr, error) {
	return errnoOf(function, arguments...)
}

// status calls a function that returns 0 or an error's number; some return -1 and set errno.
//
//go:uintptrescapes
func status(function uintptr, arguments ...uintptr) error {
	result, errno := errnoOf(function, arguments...)
	switch code := int32(result); {
	case code == 0:
		return nil
	case code > 0 && code < 4096:
		return syscall.Errno(code)
	case code < -1 && code > -4096:
		return syscall.Errno(-code)
	}
	return errno
}

// at is the C memory that a function returned the address of.
func at[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }

// cString is the text that a C function returned.
func cString(address uintptr) string {
	if address == 0 {
		return ""
	}
	var text []byte
	for p := at[byte](address); *p != 0 && len(text) < 256; p = (*byte)(unsafe.Add(unsafe.Pointer(p), 1)) {
		text = append(text, *p)
	}
	return string(text)
}

// C structs of infiniband/verbs.h and infiniband/mlx5dv.h, with the fields that are used; layout_test.go compares them
// with the headers where these are installed.
type (
	portAttr struct {
		state, maxMTU, activeMTU     uint32
		gids                         int32
		flags, maxMessage            uint32
		badKeys, violations          uint32
		pkeys, lid, smLID            uint16
		lmc, maxVL, smSL             uint8
		subnetTimeout, init          uint8
		width, speed, physical, link uint8
		moreFlags                    uint8
		flags2                       uint16
		_                            [64]byte // later versions are longer
	}
	memoryRegion struct {
		_          [4]uintptr // context, pd, address, length
		_          uint32     // handle
		lkey, rkey uint32
	}
	ahAttr struct {
		gid        [16]byte
		flow       uint32
		gidIndex   uint8
		hops       uint8
		class      uint8
		_          [1]byte
		lid        uint16
		sl         uint8
		sourceBits uint8
		rate       uint8
		global     uint8
		port       uint8
		_          [1]byte
	}
	contextAttr struct {
		flags uint32
		mask  uint64
	}
	devxUMem struct{ id uint32 }
	umemIn   struct {
		address, size uintptr
		access        uint32
		pageSizes     uint64
		mask          uint64
		fd            int32
	}
	uar struct {
		register, base uintptr
		page           uint32
		offset         int64
		mask           uint64
	}
	dvPD struct {
		number uint32
		mask   uint64
	}
	dvAH struct {
		vector uintptr
		mask   uint64
	}
	dvObjects struct{ qp, cq, srq, rwq, dm, ah, pd dvObject }
	dvObject  struct {
		in  uintptr
		out unsafe.Pointer
	}
)

// Constants of the same headers.
const (
	portActive   = 4
	linkEthernet = 2
	contextDevX  = 1 << 0
	uarCombining = 0       // MLX5DV_UAR_ALLOC_TYPE_BF
	uarNotCached = 1       // MLX5DV_UAR_ALLOC_TYPE_NC
	uarDedicated = 1 << 31 // MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED, from rdma-core 45 on
	umemDMABuf   = 1 << 0
	objectAH     = 1 << 5
	objectPD     = 1 << 6
	vectorMAC    = 20 // offset of rmac in struct mlx5_wqe_av
)
