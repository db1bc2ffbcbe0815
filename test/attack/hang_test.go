package attack

import (
	"context"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// hanging is a file system with a file whose close does not end. Any user can mount one of its own by fusermount; here
// the test does, so that it does not depend on that program.
type hanging struct {
	fs.Inode
	mu      sync.Mutex
	release chan struct{} // closed to let all closes end; guarded by mu
}

var hangs = &hanging{release: make(chan struct{})}

var _ = (fs.NodeOnAdder)((*hanging)(nil))

// OnAdd makes the file.
func (h *hanging) OnAdd(ctx context.Context) {
	h.AddChild("file", h.NewPersistentInode(ctx, &hangingFileNode{}, fs.StableAttr{Mode: fuse.S_IFREG}), false)
}

type hangingFileNode struct{ fs.Inode }

var _ = (fs.NodeOpener)((*hangingFileNode)(nil))
var _ = (fs.NodeGetattrer)((*hangingFileNode)(nil))
var _ = (fs.NodeFlusher)((*hangingFileNode)(nil))

// Open gives a handle that has nothing to read.
func (*hangingFileNode) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, fs.OK
}

// Getattr lets everybody read and write.
func (*hangingFileNode) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = fuse.S_IFREG | 0o666
	return fs.OK
}

// Flush is what every close(2) waits for.
func (*hangingFileNode) Flush(context.Context, fs.FileHandle) syscall.Errno {
	hangs.mu.Lock()
	release := hangs.release
	hangs.mu.Unlock()
	<-release
	return fs.OK
}

// hang makes closes wait from now on, or lets those end that wait, and all to come.
func (h *hanging) hang(wait bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.release:
		if wait {
			h.release = make(chan struct{})
		}
	default:
		if !wait {
			close(h.release)
		}
	}
}

// hangingFile mounts the file system and returns its file, or empty where there is no FUSE.
func hangingFile(t *testing.T, dir string) string {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	options := &fs.Options{MountOptions: fuse.MountOptions{
		AllowOther: os.Getuid() == 0, DirectMount: true, DisableXAttrs: true, FsName: "hanging", Name: "hanging",
	}}
	server, err := fs.Mount(dir, hangs, options)
	if err != nil {
		t.Log("no files that hang: ", err)
		return ""
	}
	keepFUSE()
	t.Cleanup(func() {
		hangs.hang(false)
		if server.Unmount() != nil { // somebody may still be in it, whom this ends
			_ = unix.Unmount(dir, unix.MNT_FORCE)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir + "/file"
}

// keepFUSE keeps the connection to the kernel from the programs that the test starts: as long as one of them has it, it
// outlives the test, and who waits for an answer waits for ever.
func keepFUSE() {
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, entry := range fds {
		fd, err := strconv.Atoi(entry.Name())
		if target, _ := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil && target == "/dev/fuse" {
			unix.CloseOnExec(fd)
		}
	}
}
