package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/checkpoint/criu"
	"github.com/lgpu/lgpu/checkpoint/image"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/internal/contain"
)

// imaged is what lgpu notes in an image of the program that is in it, beside CRIU's files.
type imaged struct {
	Version   int               `json:"version"`
	Path      string            `json:"path"`      // of its lgpu
	Like      []byte            `json:"like"`      // an api.AttachRequest for an lgpu like that one, as protobuf has it
	Socket    string            `json:"socket"`    // by which it reaches the daemon
	Clients   []int32           `json:"clients"`   // its processes that use devices
	Streams   []criu.Stream     `json:"streams"`   // its standard streams, those of its first process
	Contained *contain.Inside   `json:"contained"` // where it was contained; null if it was not
	Libraries map[string]string `json:"libraries"` // lgpu's and the driver's files that it maps, with their SHA-256
	Files     []memoryFile      `json:"files"`     // with what has left devices
	Named     []namedFile       `json:"named"`     // its files in memory that have names; an older image has none

	devices []image.Device // all that the driver shows
	memory  uint64         // bytes that it has on them
}

// imagedVersion is the Version that this lgpu writes and reads.
const imagedVersion = 4

// programWord is the word of an image that has an imaged.
const programWord = "program"

// describe gathers what is to be noted of a program.
func describe(ctx context.Context, conn *api.Conn, path string, pids []int, clients []int32) (*imaged, error) {
	shown, err := conn.Snapshot(ctx, &api.SnapshotRequest{})
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(shown.GetDirectories(), func(d *api.Directory) bool { return d.GetPath() == path })
	if i < 0 {
		return nil, errors.New("it is gone")
	}
	dir := shown.GetDirectories()[i]
	p := &imaged{Version: imagedVersion, Path: path, Clients: clients, Socket: filepath.Join(shown.GetDaemon().GetDir(), daemon.TenantSocket)}
	like := &api.AttachRequest{Gang: dir.GetGang(), HostMax: dir.HostMax, MemoryOvercommit: dir.GetMemoryOvercommit()}
	for n, d := range dir.GetDevices() {
		if n > 0 && !proto.Equal(d.GetRequested(), like.GetLimits()) {
			return nil, errors.New("its limits are not the same on all its devices, and so no lgpu can be asked for that is like it")
		}
		like.Limits = d.GetRequested()
		like.Devices = append(like.Devices, d.GetUuid())
		p.memory += d.GetMemoryUsed()
		if at := slices.IndexFunc(shown.GetDevices(), func(o *api.Device) bool { return o.GetUuid() == d.GetUuid() }); at >= 0 {
			like.Sim = shown.GetDevices()[at].GetSim()
		}
	}
	p.devices = devicesOf(shown, like.GetSim())
	if p.Like, err = proto.Marshal(like); err != nil {
		return nil, err
	}
	p.Libraries, err = libraries(pids)
	return p, err
}

// devicesOf are all devices of a software GPU, or with "" of the machine, as a program's driver shows them.
func devicesOf(shown *api.Snapshot, sim string) (all []image.Device) {
	for _, d := range shown.GetDevices() {
		if d.GetSim() == sim && d.GetParent() == "" {
			all = append(all, image.Device{
				UUID: d.GetUuid(), Name: d.GetName(), Kind: "compute capability " + d.GetInventory().GetCapability(),
				Units: int(d.GetUnits()), Memory: int64(d.GetMemoryTotal()),
			})
		}
	}
	return all
}

// noted are the names of libraries that have to be the same where a program is restored.
var noted = []string{"liblgpu.so", "libcuda.so.1", "libnvidia-ml.so.1"}

// libraries are those of the noted ones that processes map, and what is in them, each as its process sees it. A process that has
// just ended maps none.
func libraries(pids []int) (map[string]string, error) {
	all := map[string]string{}
	for _, pid := range pids {
		f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			_, path, _ := strings.Cut(lines.Text(), "/")
			path = "/" + path
			if !slices.Contains(noted, filepath.Base(strings.TrimSuffix(path, deleted))) || all[path] != "" {
				continue
			}
			if strings.HasSuffix(path, deleted) {
				err = fmt.Errorf("process %d maps %s: it has been replaced since the program started", pid, strings.TrimSuffix(path, deleted))
			} else {
				all[path], err = contents(fmt.Sprintf("/proc/%d/root", pid) + path)
			}
			if err != nil {
				break
			}
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// deleted is what the kernel puts after the name of a file that is mapped and has no name any more.
const deleted = " (deleted)"

// contents is the SHA-256 of what is in a file, without the stamp of a contained library.
func contents(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // who named it may have named a pipe
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, fmt.Errorf("%s is no file", path))
	}
	text, err := contain.Contents(f)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, text); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// about is what an image says of the program.
func (p *imaged) about() (image.About, error) {
	text, err := json.Marshal(p)
	return image.About{Words: map[string]string{programWord: string(text)}, Topology: p.devices}, err
}

// readImaged reads what an image says of its program, which anybody may have written.
func readImaged(i *image.Image) (*imaged, *api.AttachRequest, error) {
	p, like := &imaged{}, &api.AttachRequest{}
	err := json.Unmarshal([]byte(i.Words[programWord]), p)
	if err == nil && p.Version != imagedVersion {
		err = fmt.Errorf("it is of version %d, and this lgpu knows version %d", p.Version, imagedVersion)
	}
	if err == nil {
		err = proto.Unmarshal(p.Like, like)
	}
	if err == nil && len(p.Clients) == 0 {
		err = errors.New("no process of it uses a device")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("what it says of its program: %w", err)
	}
	if err := checkNamed(i, p.Named); err != nil {
		return nil, nil, fmt.Errorf("what it says of its program: %w", err)
	}
	p.devices = i.Topology
	return p, like, nil
}

// processes is how many bytes of an image's streams are memory of the program's processes: those that have not left a device, and
// are in no file.
func (p *imaged) processes(i *image.Image) int64 {
	n := i.Memory() - namedSize(p.Named)
	for _, f := range p.Files {
		n -= int64(f.Size)
	}
	return n
}

// check says which of the libraries is not as it was, below the root folder that the program will have.
func (p *imaged) check(root string) error {
	for path, want := range p.Libraries {
		got, err := contents(root + path)
		if err != nil {
			return fmt.Errorf("a library that its program maps is missing: %s: %w", path, cause(err))
		}
		if got != want {
			return fmt.Errorf("%s is of another version than the one that its program maps", path)
		}
	}
	return nil
}
