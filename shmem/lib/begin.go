package main

/*
#include <stdlib.h>
#include <string.h>
#include "lshmem.h"

extern char **environ;

int shmem_call_allgather(const lshmem_callbacks *c, void *send, void *receive, size_t bytes);
int shmem_call_alltoall(const lshmem_callbacks *c, void *send, void *receive, size_t bytes);
int shmem_call_barrier(const lshmem_callbacks *c);
void shmem_call_abort(const lshmem_callbacks *c, int code, char *why);
*/
import "C"

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/lgpu/lgpu/shmem"
	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/shmem/layout"
)

var versionName = sync.OnceValue(func() *C.char {
	name := "devel"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		name = info.Main.Version
	}
	return C.CString(fmt.Sprintf("lshmem %d.%d (%s)", C.LSHMEM_MAJOR, C.LSHMEM_MINOR, name))
})

//export shmemVersionName
func shmemVersionName() *C.char { return versionName() }

//export shmemUniqueID
func shmemUniqueID(out *C.lshmem_uniqueid) C.int {
	const op = "get_uniqueid"
	return guard(op, func() error {
		if out == nil {
			return errNil(op)
		}
		id, err := bootstrap.NewUniqueID(context.Background(), bootstrap.ListenOptions{Lookup: environment(nil).lookup})
		if err != nil {
			return &shmem.Error{Status: layout.StatusSystem, Op: op, PE: -1, Err: err}
		}
		for i, b := range id {
			out.bytes[i] = C.uint8_t(b)
		}
		return nil
	})
}

// variables are NAME=value lines, later ones winning.
type variables []string

// environment is the C library's, which is newer than Go's copy of it, and then an instance's own settings.
func environment(settings **C.char) variables {
	lines := stringsOf(C.environ)
	return append(lines, stringsOf(settings)...)
}

// stringsOf copies the strings up to a NULL.
func stringsOf(list **C.char) (out []string) {
	if list == nil {
		return nil
	}
	for _, s := range unsafe.Slice(list, 1<<20) {
		if s == nil {
			break
		}
		out = append(out, C.GoString(s))
	}
	return out
}

func (v variables) lookup(name string) (string, bool) {
	for i := len(v) - 1; i >= 0; i-- {
		if key, value, ok := strings.Cut(v[i], "="); ok && key == name {
			return value, true
		}
	}
	return "", false
}

// asked is what a lshmem_config asks for.
type asked struct {
	pe, pes   int
	device    int
	id        *bootstrap.UniqueID
	callbacks *C.lshmem_callbacks
	variables variables
}

func readConfig(op string, config *C.lshmem_config) (asked, error) {
	a := asked{pe: -1, device: -1}
	if config == nil {
		a.variables = environment(nil)
		return a, nil
	}
	if config.size != C.sizeof_lshmem_config {
		return a, argument(op, "a lshmem_config of %d bytes, %d are known here; lshmem_config_init sets the size", config.size, C.sizeof_lshmem_config)
	}
	a.pe, a.pes, a.device = int(config.pe), int(config.pes), int(config.device)
	a.variables = environment((**C.char)(unsafe.Pointer(config.settings)))
	if config.uniqueid != nil && config.callbacks != nil {
		return a, argument(op, "a unique id and callbacks: one of them says how PEs find each other")
	}
	if config.uniqueid != nil {
		a.id = new(bootstrap.UniqueID)
		for i := range a.id {
			a.id[i] = byte(config.uniqueid.bytes[i])
		}
	}
	if c := config.callbacks; c != nil {
		if c.size != C.sizeof_lshmem_callbacks {
			return a, argument(op, "lshmem_callbacks of %d bytes, %d are known here", c.size, C.sizeof_lshmem_callbacks)
		}
		if c.allgather == nil {
			return a, argument(op, "callbacks without allgather")
		}
		a.callbacks = c
	}
	return a, nil
}

// number fills in this PE's number from the environment.
func (a *asked) number(op string) error {
	for _, p := range []struct {
		to      *int
		missing bool
		names   []string
	}{
		{&a.pe, a.pe < 0, []string{"LSHMEM_PE", "RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}},
		{&a.pes, a.pes <= 0, []string{"LSHMEM_PES", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"}},
	} {
		for _, name := range p.names {
			text, ok := a.variables.lookup(name)
			if !p.missing || !ok {
				continue
			}
			n, err := strconv.Atoi(text)
			if err != nil {
				return argument(op, "%s=%q is not a number", name, text)
			}
			*p.to, p.missing = n, false
		}
		if p.missing {
			return argument(op, "which PE of how many? set lshmem_config's pe and pes, or LSHMEM_PE and LSHMEM_PES")
		}
	}
	return nil
}

// join makes the job that was asked for, with times as c says.
func (a *asked) join(ctx context.Context, op string, c *shmem.Config) (bootstrap.Bootstrap, error) {
	fromEnv := a.id == nil && a.callbacks == nil
	if at, _ := a.variables.lookup(bootstrap.EnvBootstrap); fromEnv && at == "" && (a.pe > 0 || a.pes > 1) {
		return nil, argument(op, "PE %d of %d, and nothing says how they find each other: set LSHMEM_BOOTSTRAP, or lshmem_config's uniqueid or callbacks", a.pe, a.pes)
	} else if !fromEnv || at != "" && (a.pe >= 0 || a.pes > 0) {
		if err := a.number(op); err != nil {
			return nil, err
		}
		a.variables = append(a.variables, bootstrap.EnvPE+"="+strconv.Itoa(a.pe), bootstrap.EnvPEs+"="+strconv.Itoa(a.pes))
	}
	options, err := c.BootstrapOptions(a.variables.lookup)
	if err != nil {
		return nil, err
	}
	if fromEnv {
		b, err := bootstrap.FromEnv(ctx, options)
		if errors.Is(err, bootstrap.ErrNotSet) { // nobody started a job: this process is all of it
			one, err := bootstrap.Local(1, options)
			if err != nil {
				return nil, err
			}
			return one[0], nil
		}
		return b, err
	}
	if a.id != nil {
		return bootstrap.Join(ctx, *a.id, a.pe, a.pes, options)
	}
	callbacks := carried(a.pes, a.callbacks)
	b, err := bootstrap.FromCallbacks(a.pe, a.pes, callbacks, options)
	if err != nil {
		return nil, errors.Join(err, callbacks.Close())
	}
	return b, nil
}

// carrier makes collectives of a program's callbacks.
type carrier struct {
	c     *C.lshmem_callbacks // a copy
	under *calls
}

// call makes a call of the program, which returns a code.
func (r *carrier) call(ctx context.Context, what string, f func() C.int) error {
	var code C.int
	if err := r.under.do(ctx, what, func() { code = f() }); err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("the program's %s callback returned %d", what, code)
	}
	return nil
}

// exchange makes a call of the program with a buffer to send and one to receive in. They are C memory, and freed only
// by a call that returned: one that is abandoned after a timeout may still write to them.
func (r *carrier) exchange(ctx context.Context, what string, send []byte, received int, f func(send, receive unsafe.Pointer) C.int) ([]byte, error) {
	p := C.malloc(C.size_t(max(1, len(send)+received)))
	defer C.free(p)
	copy(unsafe.Slice((*byte)(p), len(send)), send)
	to := unsafe.Add(p, len(send))
	if err := r.call(ctx, what, func() C.int { return f(p, to) }); err != nil {
		return nil, err
	}
	return C.GoBytes(to, C.int(received)), nil
}

func (r *carrier) allGather(ctx context.Context, mine, all []byte) error {
	got, err := r.exchange(ctx, "allgather", mine, len(all), func(send, receive unsafe.Pointer) C.int {
		return C.shmem_call_allgather(r.c, send, receive, C.size_t(len(mine)))
	})
	copy(all, got)
	return err
}

func (r *carrier) barrier(ctx context.Context) error {
	return r.call(ctx, "barrier", func() C.int { return C.shmem_call_barrier(r.c) })
}

func (r *carrier) abort(code int, why string) {
	text := C.CString(why)
	defer C.free(unsafe.Pointer(text))
	// An error says that the PE has left: then there is no job to end.
	_ = r.call(context.Background(), "abort", func() C.int {
		C.shmem_call_abort(r.c, C.int(code), text)
		return 0
	})
}

// carried are a program's callbacks for the bootstrap. They are copied; the program keeps their context alive.
func carried(pes int, from *C.lshmem_callbacks) bootstrap.Callbacks {
	c := (*C.lshmem_callbacks)(C.malloc(C.sizeof_lshmem_callbacks))
	*c = *from
	r := &carrier{c, &calls{free: func() { C.free(unsafe.Pointer(c)) }}}
	b := bootstrap.Callbacks{
		AllGatherFixed: r.allGather,
		Close: func() error {
			r.under.close()
			return nil
		},
	}
	if c.barrier != nil {
		b.Barrier = r.barrier
	}
	if c.abort != nil {
		b.Abort = r.abort
	}
	if c.alltoall != nil {
		// The parts must have one length: the largest of all PEs, which an allgather finds out.
		b.AllToAll = func(ctx context.Context, parts [][]byte) ([][]byte, error) {
			return padded(pes, parts, func(mine, all []byte) error { return r.allGather(ctx, mine, all) },
				func(send []byte, each int) ([]byte, error) {
					return r.exchange(ctx, "alltoall", send, len(send), func(s, to unsafe.Pointer) C.int {
						return C.shmem_call_alltoall(c, s, to, C.size_t(each))
					})
				})
		}
	}
	return b
}

//export shmemInit
func shmemInit(config *C.lshmem_config, out *C.lshmem_pe_t) C.int {
	const op = "init"
	return guard(op, func() error {
		if out == nil {
			return errNil(op)
		}
		a, err := readConfig(op, config)
		if err != nil {
			return err
		}
		c, err := shmem.ConfigFrom(a.variables)
		if err != nil {
			return err
		}
		if a.device >= 0 {
			c.Device = a.device
		}
		b, err := a.join(context.Background(), op, &c)
		if err != nil {
			var e *shmem.Error
			if errors.As(err, &e) {
				return err
			}
			status := layout.StatusSystem
			switch {
			case errors.Is(err, bootstrap.ErrTimeout):
				status = layout.StatusTimeout
			case errors.Is(err, bootstrap.ErrSetting):
				status = layout.StatusArgument
			}
			return &shmem.Error{Status: status, Op: op, PE: -1, Err: err}
		}
		c.Bootstrap = owned{b}
		pe, err := shmem.Init(context.Background(), c)
		if err != nil {
			return errors.Join(err, ignoreClosed(b.Close()))
		}
		*out = C.lshmem_pe_t(add(pe))
		bootstraps.Store(pe, b)
		return nil
	})
}

// owned is a bootstrap that this file closes.
type owned struct{ bootstrap.Bootstrap }

// bootstraps are those of the instances.
var bootstraps sync.Map

func ignoreClosed(err error) error {
	if errors.Is(err, bootstrap.ErrClosed) {
		return nil
	}
	return err
}

//export shmemFinalize
func shmemFinalize(handle C.lshmem_pe_t) C.int {
	const op = "finalize"
	return guard(op, func() error {
		pe := take(int64(handle))
		if pe == nil {
			return unknown(op, int64(handle))
		}
		err := pe.Finalize()
		if b, ok := bootstraps.LoadAndDelete(pe); ok {
			closed := ignoreClosed(b.(bootstrap.Bootstrap).Close())
			if err == nil && closed != nil {
				err = &shmem.Error{Status: layout.StatusSystem, Op: op, PE: -1, Err: closed}
			}
		}
		return err
	})
}

//export shmemGlobalExit
func shmemGlobalExit(handle C.lshmem_pe_t, code C.int) C.int {
	return with(handle, "global_exit", func(pe *shmem.PE) error {
		pe.Abort(int(code), fmt.Sprintf("PE %d called lshmem_global_exit(%d)", pe.Rank(), code))
		return nil
	})
}

//export shmemStatus
func shmemStatus(handle C.lshmem_pe_t) C.int {
	return with(handle, "status", func(pe *shmem.PE) error { return pe.Err() })
}

//export shmemMyPE
func shmemMyPE(handle C.lshmem_pe_t, out *C.int) C.int {
	return number(handle, "my_pe", out, func(pe *shmem.PE) (int, error) { return pe.Rank(), nil })
}

//export shmemPEs
func shmemPEs(handle C.lshmem_pe_t, out *C.int) C.int {
	return number(handle, "n_pes", out, func(pe *shmem.PE) (int, error) { return pe.Size(), nil })
}

//export shmemDevice
func shmemDevice(handle C.lshmem_pe_t, out *C.int) C.int {
	return number(handle, "device", out, func(pe *shmem.PE) (int, error) {
		if pe.Context() == nil {
			return -1, nil
		}
		return int(pe.Context().Device), nil
	})
}

//export shmemState
func shmemState(handle C.lshmem_pe_t, out *C.struct_lshmem_state) C.int {
	const op = "get_state"
	return with(handle, op, func(pe *shmem.PE) error {
		if out == nil {
			return errNil(op)
		}
		*(*layout.State)(unsafe.Pointer(out)) = pe.State()
		return nil
	})
}

//export shmemStateAddress
func shmemStateAddress(handle C.lshmem_pe_t, out *C.uint64_t) C.int {
	return number(handle, "state_address", out, func(pe *shmem.PE) (uint64, error) { return pe.State().Self, nil })
}

//export shmemInfo
func shmemInfo(handle C.lshmem_pe_t, text *C.char, bytes C.size_t, needed *C.size_t) C.int {
	const op = "info"
	return with(handle, op, func(pe *shmem.PE) error {
		i := pe.Info()
		i.Settings = maps.Clone(i.Settings)
		if _, ok := i.Settings["LSHMEM_BOOTSTRAP"]; ok {
			i.Settings["LSHMEM_BOOTSTRAP"] = "(it holds a secret)"
		}
		data, err := json.Marshal(i)
		if err != nil {
			return err
		}
		if needed != nil {
			*needed = C.size_t(len(data) + 1)
		}
		if text == nil || uint64(bytes) < uint64(len(data)+1) {
			return argument(op, "%d bytes are needed, there are %d", len(data)+1, uint64(bytes))
		}
		to := unsafe.Slice((*byte)(unsafe.Pointer(text)), len(data)+1)
		to[copy(to, data)] = 0
		return nil
	})
}
