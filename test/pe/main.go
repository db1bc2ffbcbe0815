// Pe is a PE of a job for tests of lgpu run --pes. It joins the job and does what its arguments say, in order:
//
//	alloc BYTES   allocate so much memory on LSHMEM_DEVICE
//	map           export a chunk, import that of the next PE, which may be on another device, write there and read the own
//	heap BYTES    allocate so much symmetric memory
//	signal        wait in a kernel for a signal that never comes; it ends as wait does
//	barrier       a barrier; a PE that cannot reach it says why, leaves and ends with status 9
//	say WORD      print it
//	read          print standard input
//	wait          until the job ends; then say so, leave and end with status 9
//	leave         leave the job in order
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem"
	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/shmem/cuda"
)

func main() {
	p := &pe{}
	err := p.run(os.Args[1:])
	if err == nil {
		return
	}
	fmt.Println("error", err)
	if p.b != nil {
		p.b.Close()
		os.Exit(9)
	}
	os.Exit(1)
}

type pe struct {
	b      bootstrap.Bootstrap
	driver *cuda.Driver
	device int32
	ctx    *cuda.Context
	shmem  *shmem.PE
	heap   uint64 // address of its symmetric memory
}

func (p *pe) run(words []string) (err error) {
	ctx := context.Background()
	if p.b, err = bootstrap.FromEnv(ctx, bootstrap.Options{}); err != nil {
		return err
	}
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		argument := ""
		if word == "alloc" || word == "heap" || word == "say" {
			argument, words = words[0], words[1:]
		}
		if err := p.do(ctx, word, argument); err != nil {
			return err
		}
		if word == "wait" {
			return nil
		}
	}
	return nil
}

// do does what one word says.
func (p *pe) do(ctx context.Context, word, argument string) error {
	switch word {
	case "alloc", "heap":
		bytes, err := strconv.ParseUint(argument, 10, 64)
		if err != nil {
			return err
		}
		if word == "heap" {
			return p.symmetric(ctx, bytes)
		}
		return p.alloc(bytes)
	case "signal":
		return p.signal()
	case "map":
		return p.mapNext(ctx)
	case "barrier":
		return p.b.Barrier(ctx)
	case "say":
		fmt.Println(argument)
	case "read":
		in, err := io.ReadAll(os.Stdin)
		if err != nil {
			return err
		}
		fmt.Printf("read %q\n", in)
	case "wait":
		<-p.b.Lost()
		_, err := p.b.LostPE()
		return err
	case "leave":
		return p.leave()
	default:
		return fmt.Errorf("what is %q?", word)
	}
	return nil
}

// leave leaves the job.
func (p *pe) leave() error {
	if p.shmem != nil {
		if err := p.shmem.Finalize(); err != nil {
			return err
		}
	}
	return p.b.Close()
}

// open makes a context on the device that the launcher says.
func (p *pe) open() (err error) {
	if p.driver != nil {
		return nil
	}
	if p.driver, err = cuda.Load(); err != nil {
		return err
	}
	ordinal, err := strconv.Atoi(os.Getenv("LSHMEM_DEVICE"))
	if err != nil {
		return err
	}
	if p.device, err = p.driver.DeviceGet(ordinal); err != nil {
		return err
	}
	p.ctx, err = p.driver.Primary(p.device)
	return err
}

func (p *pe) alloc(bytes uint64) error {
	if err := p.open(); err != nil {
		return err
	}
	return p.ctx.Do(func() error {
		_, err := p.driver.Alloc(bytes)
		return err
	})
}

func (p *pe) symmetric(ctx context.Context, bytes uint64) error {
	if err := p.open(); err != nil {
		return err
	}
	config, err := shmem.ConfigFrom(os.Environ())
	if err != nil {
		return err
	}
	config.Bootstrap = p.b
	if p.shmem, err = shmem.Init(ctx, config); err != nil {
		return err
	}
	p.heap, err = p.shmem.Malloc(bytes)
	return err
}

// signal waits on the device, where only the library can end the wait.
func (p *pe) signal() error {
	const equal, never = 0, 7
	if err := p.shmem.SignalWaitOnStream(p.heap, equal, never, 0); err != nil {
		return err
	}
	fmt.Println("in a kernel")
	if err := p.ctx.Do(func() error { return p.driver.StreamSynchronize(0) }); err != nil {
		return err
	}
	return p.shmem.Err()
}

// mapNext does what a symmetric heap does: memory of every PE is mapped at the others, whatever device it is on.
func (p *pe) mapNext(ctx context.Context) error {
	if err := p.open(); err != nil {
		return err
	}
	return p.ctx.Do(func() error {
		prop := cuda.DeviceMemory(p.device, false)
		bytes, err := p.driver.Granularity(&prop)
		if err != nil {
			return err
		}
		own, err := p.driver.Create(bytes, &prop)
		if err != nil {
			return err
		}
		at, err := p.mapped(own, bytes)
		if err != nil {
			return err
		}
		if err := p.driver.Set(at, 0, bytes); err != nil {
			return err
		}
		fd, err := p.driver.Export(own)
		if err != nil {
			return err
		}
		theirs, err := p.exchange(ctx, fd)
		if err != nil {
			return err
		}
		handle, err := p.driver.Import(theirs)
		if err != nil {
			return err
		}
		there, err := p.mapped(handle, bytes)
		if err != nil {
			return err
		}
		next := (p.b.Rank() + 1) % p.b.Size()
		word := make([]byte, 8)
		binary.LittleEndian.PutUint64(word, uint64(100+next))
		if err := p.driver.Write(there, word); err != nil {
			return err
		}
		if err := p.b.Barrier(ctx); err != nil {
			return err
		}
		if err := p.driver.Read(word, at); err != nil {
			return err
		}
		if got := binary.LittleEndian.Uint64(word); got != uint64(100+p.b.Rank()) {
			return fmt.Errorf("the PE before wrote %d", got)
		}
		fmt.Println("mapped")
		return nil
	})
}

// mapped maps a handle for this PE's device.
func (p *pe) mapped(handle, bytes uint64) (uint64, error) {
	at, err := p.driver.Reserve(bytes, 0, 0)
	if err != nil {
		return 0, err
	}
	if err := p.driver.Map(at, bytes, handle); err != nil {
		return 0, err
	}
	return at, p.driver.Allow(at, bytes, p.device)
}

// exchange gives the PE before this a descriptor and returns the one of the next.
func (p *pe) exchange(ctx context.Context, fd int) (int, error) {
	dir, err := os.MkdirTemp("", "pe-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	paths, err := p.b.AllGather(ctx, []byte(path))
	if err != nil {
		return 0, err
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: string(paths[(p.b.Rank()+1)%p.b.Size()]), Net: "unix"})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	before, err := listener.AcceptUnix()
	if err != nil {
		return 0, err
	}
	defer before.Close()
	if _, _, err := before.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil); err != nil {
		return 0, err
	}
	control := make([]byte, unix.CmsgSpace(4))
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return 0, err
	}
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), control)
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return 0, errors.Join(errors.New("no descriptor came"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return 0, err
	}
	return fds[0], p.b.Barrier(ctx)
}
