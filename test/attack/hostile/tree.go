package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/tenant/protocol"
)

// name returns a name of a length with any bytes.
func name(r *rand.Rand, length int) string {
	b := make([]byte, length)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

// lengths that are at a bound somewhere.
var lengths = []int{0, 1, 15, 16, 63, 64, 255, 256, 4096}

// names gives every name that a tenant can choose every byte and every length: that of its process, of nodes, of gangs and
// cgroups, of paths in calls.
func (w *world) names() {
	conn := w.dialAPI()
	if conn == nil {
		return
	}
	defer conn.Close()
	r := w.dice(0)
	for n := 0; w.more(); n++ {
		comm := bytes.Repeat([]byte{byte(n)}, 1+r.IntN(15))
		if r.IntN(2) == 0 {
			comm = []byte(name(r, 15))
		}
		_ = os.WriteFile("/proc/self/comm", comm, 0)
		if m, err := w.join(); err == nil {
			w.note(send(m.fd, protocol.Message{Kind: protocol.Gate}.Append(nil)))
			m.close()
		}
		text := name(r, lengths[r.IntN(len(lengths))])
		if r.IntN(2) == 0 {
			text = strings.Repeat(string([]byte{byte(n)}), lengths[r.IntN(len(lengths))])
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_, err := conn.List(ctx, &api.ListRequest{Path: strings.ToValidUTF8(text, "\x01")})
		w.note(err)
		_, err = conn.Read(ctx, &api.ReadRequest{Path: "/" + strings.ToValidUTF8(text, "\x7f")})
		w.note(err)
		cancel()
		w.nameNodes(r, text)
	}
}

// nameNodes uses a name in the tree.
func (w *world) nameNodes(r *rand.Rand, text string) {
	if w.mine == "" {
		return
	}
	at := w.mine + "/" + text // not joined, which would clean it
	if err := os.Mkdir(at, 0o755); err == nil && r.IntN(2) == 0 {
		w.note(os.Remove(at))
	}
	own := filepath.Join(w.mine, "named")
	_ = os.Mkdir(own, 0o755)
	for _, file := range []string{"gang", "cgroup.path"} {
		_ = os.WriteFile(filepath.Join(own, file), []byte(text), 0)
	}
	_, _ = os.Stat(at)
	_, _ = os.ReadFile(at + "/memory.max")
}

// directories makes as many as it is let, side by side and below each other, and removes some.
func (w *world) directories() {
	if w.mine == "" {
		w.rest()
		return
	}
	n := 0
	w.each(1, func(r *rand.Rand) {
		n++
		at := filepath.Join(w.mine, fmt.Sprintf("d%d-%d", w.seed, n))
		if n%10 == 0 { // deep
			for range 20 {
				if err := os.Mkdir(at, 0o755); err != nil {
					w.note(err)
					break
				}
				at = filepath.Join(at, "x")
			}
			return
		}
		w.note(os.Mkdir(at, 0o755))
		if r.IntN(8) == 0 {
			w.note(os.Remove(at))
		}
	})
}

// files writes garbage of every size into every file of its own nodes, and reads all.
func (w *world) files() {
	if w.mine == "" {
		w.rest()
		return
	}
	files := limits.Files()
	words := []string{
		"max", "0", "1", "-1", "100%", "GPU-", "0.0000001", "9999999999999999999999", "count=1", "list=0-9999999999", "NaN",
	}
	w.each(2, func(r *rand.Rand) {
		node := filepath.Join(w.mine, fmt.Sprintf("f%d", r.IntN(8)))
		_ = os.Mkdir(node, 0o755)
		file := filepath.Join(node, files[r.IntN(len(files))].Name)
		data := []byte(name(r, []int{0, 1, 100, 4096, 1 << 16, 1 << 20}[r.IntN(6)]))
		switch r.IntN(3) {
		case 0:
			data = []byte(words[r.IntN(len(words))] + "\n" + words[r.IntN(len(words))])
		case 1:
			data = bytes.Repeat([]byte(words[r.IntN(len(words))]+"\n"), 1+r.IntN(10000))
		}
		w.note(os.WriteFile(file, data, 0))
		_, err := os.ReadFile(file)
		w.note(err)
	})
}

// refusals does what it may not, in a loop: each might be a line of the log.
func (w *world) refusals() {
	conn := w.dialAPI()
	if conn == nil {
		return
	}
	defer conn.Close()
	w.each(3, func(r *rand.Rand) {
		switch r.IntN(4) {
		case 0:
			if fd, err := w.dialTenant(); err == nil {
				_ = send(fd, []byte("nothing that anybody would understand"))
				unix.Close(fd)
			}
		case 1:
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			_, err := conn.Create(ctx, &api.CreateRequest{Path: "/" + name(r, 8)})
			_, stopErr := conn.Stop(ctx, &api.StopRequest{})
			cancel()
			if err == nil || stopErr == nil {
				w.note(fmt.Errorf("a stranger was obeyed"))
			}
		default:
			if w.mine == "" {
				return
			}
			_ = os.Mkdir(filepath.Join(w.tree(), fmt.Sprintf("no%d", r.IntN(1000))), 0o755)
			_ = os.WriteFile(filepath.Join(w.tree(), "memory.max"), []byte("1"), 0)
			_ = os.WriteFile(filepath.Join(w.mine, "lgpu.weight"), []byte("10000"), 0)
			_ = os.Remove(w.mine)
			_ = os.Chown(w.mine, os.Getuid()+1, -1)
		}
	})
}
