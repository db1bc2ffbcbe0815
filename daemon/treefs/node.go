package treefs

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lgpu/lgpu/policy/limits"
)

// mount is what all inodes of a mounted tree have in common.
type mount struct {
	tree    *limits.Tree
	log     *slog.Logger
	started time.Time
}

// fail logs why something was refused and returns the errno that says so. Without an errno in err it is other.
func (m *mount) fail(ctx context.Context, what string, err error, other syscall.Errno) syscall.Errno {
	errno := other
	errors.As(err, &errno)
	c := caller(ctx)
	m.log.Info("refused in the tree of limits", "what", what, "uid", c.UID, "pid", c.PID, "errno", errno.Error(),
		"why", err.Error())
	return errno
}

// allow asks whether the caller may.
func (m *mount) allow(ctx context.Context, a limits.Access) syscall.Errno {
	if err := m.tree.May(caller(ctx), a); err != nil {
		return m.fail(ctx, string(a.Action), err, syscall.EPERM)
	}
	return fs.OK
}

func caller(ctx context.Context) limits.Author {
	c, ok := fuse.FromContext(ctx)
	if !ok {
		return limits.Author{UID: limits.Nobody, GID: limits.Nobody} // a request without a process behind it
	}
	return limits.Author{UID: c.Uid, GID: c.Gid, PID: int(c.Pid), Groups: func() []uint32 { return groupsOf(int(c.Pid)) }}
}

// Inode numbers: IDs of nodes are never used again, so neither are these.
const filesPerNode = 256

var fileNumbers = func() map[string]uint64 {
	numbers := map[string]uint64{}
	for i, f := range limits.Files() {
		numbers[f.Name] = uint64(i) + 1
	}
	return numbers
}()

// folder is a node of the tree.
type folder struct {
	fs.Inode
	mount *mount
	path  string
	id    uint64 // 0 for the root of the mount, which is always there
}

var _ = (fs.NodeLookuper)((*folder)(nil))
var _ = (fs.NodeReaddirer)((*folder)(nil))
var _ = (fs.NodeMkdirer)((*folder)(nil))
var _ = (fs.NodeRmdirer)((*folder)(nil))
var _ = (fs.NodeUnlinker)((*folder)(nil))
var _ = (fs.NodeCreater)((*folder)(nil))
var _ = (fs.NodeGetattrer)((*folder)(nil))
var _ = (fs.NodeSetattrer)((*folder)(nil))
var _ = (fs.NodeAccesser)((*folder)(nil))

// node is the node that f stands for as the caller sees it, or ENOENT if that was removed, even if there is another one
// of its name.
func (f *folder) node(ctx context.Context) (limits.Directory, syscall.Errno) {
	n, err := f.mount.tree.By(caller(ctx)).Directory(f.path)
	if err != nil || f.id != 0 && n.ID != f.id {
		return limits.Directory{}, syscall.ENOENT
	}
	return n, fs.OK
}

// Lookup finds a file or a child.
func (f *folder) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n, errno := f.node(ctx)
	if errno != 0 {
		return nil, errno
	}
	for _, entry := range f.mount.tree.By(caller(ctx)).Files(n.Path) {
		if entry.Name != name {
			continue
		}
		c := &control{folder: f, File: entry}
		c.attributes(n, &out.Attr)
		return f.NewInode(ctx, c, fs.StableAttr{Mode: fuse.S_IFREG, Ino: n.ID*filesPerNode + fileNumbers[name]}), fs.OK
	}
	child, err := f.mount.tree.By(caller(ctx)).Directory(path.Join(n.Path, name))
	if err != nil || child.Parent != n.ID {
		return nil, syscall.ENOENT
	}
	return f.child(ctx, child, out), fs.OK
}

// child makes the inode of a node below f.
func (f *folder) child(ctx context.Context, n limits.Directory, out *fuse.EntryOut) *fs.Inode {
	f.mount.attributes(n, &out.Attr)
	below := &folder{mount: f.mount, path: n.Path, id: n.ID}
	return f.NewInode(ctx, below, fs.StableAttr{Mode: fuse.S_IFDIR, Ino: n.ID * filesPerNode})
}

// Readdir lists files and children.
func (f *folder) Readdir(ctx context.Context) (fs.DirStream, syscall.Errno) {
	n, errno := f.node(ctx)
	if errno != 0 {
		return nil, errno
	}
	var entries []fuse.DirEntry
	for _, entry := range f.mount.tree.By(caller(ctx)).Files(n.Path) {
		number := n.ID*filesPerNode + fileNumbers[entry.Name]
		entries = append(entries, fuse.DirEntry{Name: entry.Name, Mode: fuse.S_IFREG, Ino: number})
	}
	for _, name := range n.Children {
		if child, err := f.mount.tree.Directory(path.Join(n.Path, name)); err == nil {
			entries = append(entries, fuse.DirEntry{Name: name, Mode: fuse.S_IFDIR, Ino: child.ID * filesPerNode})
		}
	}
	return fs.NewListDirStream(entries), fs.OK
}

// Mkdir makes a persistent node that belongs to the caller.
func (f *folder) Mkdir(ctx context.Context, name string, _ uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n, errno := f.node(ctx)
	if errno != 0 {
		return nil, errno
	}
	at := path.Join(n.Path, name)
	c := caller(ctx)
	made, err := f.mount.tree.By(c).Create(limits.CreateSpec{Path: at, UID: c.UID, GID: c.GID})
	if err != nil {
		return nil, f.mount.fail(ctx, "mkdir", err, syscall.EIO)
	}
	return f.child(ctx, made, out), fs.OK
}

// Rmdir removes a node; its files go with it.
func (f *folder) Rmdir(ctx context.Context, name string) syscall.Errno {
	n, errno := f.node(ctx)
	if errno != 0 {
		return errno
	}
	if err := f.mount.tree.By(caller(ctx)).Rmdir(path.Join(n.Path, name)); err != nil {
		return f.mount.fail(ctx, "rmdir", err, syscall.EIO)
	}
	return fs.OK
}

// Unlink refuses: files come and go with their node.
func (f *folder) Unlink(context.Context, string) syscall.Errno { return syscall.EPERM }

// Create refuses: there are no other files.
func (f *folder) Create(context.Context, string, uint32, uint32, *fuse.EntryOut) (
	*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	return nil, nil, 0, syscall.EACCES
}

// Getattr says who owns the node.
func (f *folder) Getattr(ctx context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n, errno := f.node(ctx)
	if errno == 0 {
		f.mount.attributes(n, &out.Attr)
	}
	return errno
}

// Setattr gives the node to another owner. Modes follow from owners, and times are not kept.
func (f *folder) Setattr(ctx context.Context, _ fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	n, errno := f.node(ctx)
	if errno != 0 {
		return errno
	}
	if _, is := in.GetMode(); is {
		return syscall.EPERM
	}
	uid, hasUID := in.GetUID()
	gid, hasGID := in.GetGID()
	if hasUID || hasGID {
		if !hasUID {
			uid = n.UID
		}
		if !hasGID {
			gid = n.GID
		}
		if err := f.mount.tree.By(caller(ctx)).Chown(n.Path, uid, gid); err != nil {
			return f.mount.fail(ctx, "chown", err, syscall.EIO)
		}
	}
	return f.Getattr(ctx, nil, out)
}

// Access says whether the caller may make nodes in f.
func (f *folder) Access(ctx context.Context, mask uint32) syscall.Errno {
	if mask&wantWrite == 0 {
		return fs.OK
	}
	create := limits.Access{Action: limits.ActionCreate, Path: path.Join(f.path, "new")}
	if f.mount.tree.May(caller(ctx), create) != nil {
		return syscall.EACCES
	}
	return fs.OK
}

// Bits of the mask of access(2).
const (
	wantExecute = 1
	wantWrite   = 2
	wantRead    = 4
)

// attributes describes a node's folder.
func (m *mount) attributes(n limits.Directory, out *fuse.Attr) {
	m.common(out)
	out.Mode, out.Nlink = fuse.S_IFDIR|0o775, uint32(2+len(n.Children))
	out.Owner = fuse.Owner{Uid: n.UID, Gid: n.GID}
}

func (m *mount) common(out *fuse.Attr) {
	out.SetTimes(&m.started, &m.started, &m.started)
	out.Blksize = 4096
}

// control is a file of a node.
type control struct {
	fs.Inode
	limits.File
	folder *folder
}

var _ = (fs.NodeOpener)((*control)(nil))
var _ = (fs.NodeGetattrer)((*control)(nil))
var _ = (fs.NodeSetattrer)((*control)(nil))
var _ = (fs.NodeAccesser)((*control)(nil))

// attributes describes the file. Its owner is the owner of the directory above, who decides how much this one gets; of a
// file about the programs in it, the directory's own. Its size is 0, as with other files whose text is made when they
// are read.
func (c *control) attributes(n limits.Directory, out *fuse.Attr) {
	m := c.folder.mount
	m.common(out)
	out.Mode, out.Nlink = fuse.S_IFREG, 1
	if c.Readable {
		out.Mode |= 0o444
	}
	if c.Writable {
		out.Mode |= 0o220
	}
	if parent, ok := m.tree.ByID(n.Parent); ok && !c.Users {
		n = parent
	}
	out.Owner = fuse.Owner{Uid: n.UID, Gid: n.GID}
}

// Open checks who writes. Files keep no contents: neither the kernel's cache nor truncation have a meaning.
func (c *control) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if _, errno := c.folder.node(ctx); errno != 0 {
		return nil, 0, errno
	}
	mode := flags & syscall.O_ACCMODE
	if mode != syscall.O_WRONLY && !c.Readable {
		return nil, 0, syscall.EACCES
	}
	if mode != syscall.O_RDONLY {
		if !c.Writable {
			return nil, 0, syscall.EACCES
		}
		if errno := c.folder.mount.allow(ctx, c.write()); errno != 0 {
			return nil, 0, errno
		}
	}
	return &handle{control: c, append: flags&syscall.O_APPEND != 0}, fuse.FOPEN_DIRECT_IO, fs.OK
}

// Getattr describes the file.
func (c *control) Getattr(ctx context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n, errno := c.folder.node(ctx)
	if errno == 0 {
		c.attributes(n, &out.Attr)
	}
	return errno
}

// Setattr lets the shell truncate what has no length, and touch what has no times.
func (c *control) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	_, mode := in.GetMode()
	_, uid := in.GetUID()
	_, gid := in.GetGID()
	size, sized := in.GetSize()
	switch {
	case mode || uid || gid:
		return syscall.EPERM
	case sized && size != 0:
		return syscall.EINVAL
	}
	return c.Getattr(ctx, h, out)
}

// Access says whether the caller may write the file.
func (c *control) Access(ctx context.Context, mask uint32) syscall.Errno {
	if mask&wantExecute != 0 || mask&wantWrite != 0 && !c.Writable || mask&wantRead != 0 && !c.Readable {
		return syscall.EACCES
	}
	if mask&wantWrite != 0 && c.folder.mount.tree.May(caller(ctx), c.write()) != nil {
		return syscall.EACCES
	}
	return fs.OK
}

// write is what it is to write the file.
func (c *control) write() limits.Access {
	return limits.Access{Action: limits.ActionWrite, Path: c.folder.path, File: c.Name}
}

// handle is an open file.
type handle struct {
	control *control
	append  bool // offsets of writes come from a size that has no meaning

	mu      sync.Mutex
	picture string // what a read from the beginning found
	next    int64  // where the write before ended
	cut     bool   // it did not end with a line
}

var _ = (fs.FileReader)((*handle)(nil))
var _ = (fs.FileWriter)((*handle)(nil))

// Read returns a piece of the picture, and takes a new one from the beginning.
func (h *handle) Read(ctx context.Context, dest []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.control.folder.mount
	if offset == 0 {
		n, errno := h.control.folder.node(ctx)
		if errno != 0 {
			return nil, syscall.ENODEV // what a file says whose node is gone
		}
		text, err := m.tree.By(caller(ctx)).Read(n.Path, h.control.Name)
		if err != nil {
			return nil, syscall.ENODEV
		}
		h.picture = text
	}
	rest := h.picture[min(offset, int64(len(h.picture))):]
	return fuse.ReadResultData([]byte(rest[:min(len(rest), len(dest))])), fs.OK
}

// Write is a transaction.
func (h *handle) Write(ctx context.Context, data []byte, offset int64) (uint32, syscall.Errno) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.control.folder.mount
	n, errno := h.control.folder.node(ctx)
	if errno != 0 {
		return 0, syscall.ENODEV
	}
	what := path.Join(n.Path, h.control.Name)
	if h.cut && offset == h.next || !h.append && offset != 0 && offset != h.next {
		err := errors.New("a write begins a line: what belongs together is written by one write(2)")
		return 0, m.fail(ctx, what, err, syscall.EINVAL)
	}
	write := []limits.Assignment{{File: h.control.Name, Text: string(data)}}
	if err := m.tree.By(caller(ctx)).Update(n.Path, write); err != nil {
		return 0, m.fail(ctx, what, err, syscall.EIO)
	}
	h.next = offset + int64(len(data))
	h.cut = len(data) > 0 && data[len(data)-1] != '\n'
	return uint32(len(data)), fs.OK
}
