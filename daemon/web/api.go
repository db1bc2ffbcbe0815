package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"slices"
	"syscall"

	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/tenant/region"
)

// What the page reads. Shares are in hundredths of a percent, amounts in bytes; IDs are text, since a browser's numbers
// end at 2^53. null is "no limit", "not known" or "not measured".
type (
	state struct {
		Time    int64      `json:"time"` // Unix ms
		Daemon  about      `json:"daemon"`
		Devices []device   `json:"devices"`
		Nodes   []treeNode `json:"nodes"`
		Events  []event    `json:"events"` // newest first
	}
	about struct {
		Version  string `json:"version"`
		PID      int    `json:"pid"`
		Started  int64  `json:"started"` // Unix ms
		Dir      string `json:"dir"`
		Tree     string `json:"tree"`
		Police   string `json:"police"`
		Restarts uint64 `json:"restarts"`
	}
	device struct {
		UUID        string     `json:"uuid"`
		Index       string     `json:"index"`
		Name        string     `json:"name"`
		Key         string     `json:"key"`
		Mode        string     `json:"mode"`
		Sim         string     `json:"sim"`
		Fault       string     `json:"fault"`
		Units       int        `json:"units"`
		Total       uint64     `json:"total"`
		Used        uint64     `json:"used"`
		Utilisation *int       `json:"utilisation"`
		Strangers   []stranger `json:"strangers"`
	}
	stranger struct {
		PID     int    `json:"pid"`
		Command string `json:"command"`
		Memory  uint64 `json:"memory"`
	}
	treeNode struct {
		ID         string       `json:"id"`
		Path       string       `json:"path"`
		Kind       string       `json:"kind"`
		Persistent bool         `json:"persistent"`
		State      string       `json:"state"`
		Gang       string       `json:"gang"`
		Devices    []nodeDevice `json:"devices"`
		Clients    []client     `json:"clients"`
	}
	nodeDevice struct {
		UUID      string    `json:"uuid"`
		State     string    `json:"state"`
		Used      uint64    `json:"used"`
		Peak      uint64    `json:"peak"`
		Limit     *uint64   `json:"limit"`
		Asked     *uint32   `json:"asked"`
		Delivered *uint32   `json:"delivered"`
		Cap       uint32    `json:"cap"`
		Min       uint32    `json:"min"`
		Weight    uint32    `json:"weight"`
		Priority  string    `json:"priority"`
		Busy      float64   `json:"busy"` // seconds
		Launches  uint64    `json:"launches"`
		Requested requested `json:"requested"`
	}
	requested struct {
		Lgpu       string  `json:"lgpu"`
		ComputeMax *uint32 `json:"compute_max"`
		ComputeMin *uint32 `json:"compute_min"`
		Weight     *uint32 `json:"weight"`
		Priority   string  `json:"priority"`
		MemoryMax  *uint64 `json:"memory_max"`
		MemoryHigh *uint64 `json:"memory_high"`
	}
	client struct {
		PID     int      `json:"pid"`
		UID     uint32   `json:"uid"`
		Command string   `json:"command"`
		Memory  []uint64 `json:"memory"`
	}
	event struct {
		Seq  uint64 `json:"seq"`
		Time int64  `json:"time"` // Unix ms
		Kind string `json:"kind"`
		Path string `json:"path"`
		Text string `json:"text"`
	}
)

// shownEvents is the number of events that a state has.
const shownEvents = 30

// state is what the page shows of a snapshot.
func (s *Server) state(snapshot *daemon.Snapshot) *state {
	d := &snapshot.Daemon
	out := &state{
		Time: snapshot.At.UnixMilli(),
		Daemon: about{
			Version: d.Version, PID: d.PID, Started: d.Started.UnixMilli(), Dir: d.Dir, Tree: d.Tree, Police: string(d.Police),
			Restarts: d.Restarts,
		},
		Devices: make([]device, len(snapshot.Devices)),
		Nodes:   make([]treeNode, len(snapshot.Nodes)),
		Events:  []event{},
	}
	names := map[gpu.UUID]string{}
	for i := range snapshot.Devices {
		names[snapshot.Devices[i].UUID] = snapshot.Devices[i].Identity()
		out.Devices[i] = describe(&snapshot.Devices[i])
	}
	for i := range snapshot.Nodes {
		out.Nodes[i] = branch(&snapshot.Nodes[i], names)
	}
	recent := s.source.Recent()
	for i := len(recent) - 1; i >= 0 && len(out.Events) < shownEvents; i-- {
		e := &recent[i]
		out.Events = append(out.Events, event{e.Seq, e.Time.UnixMilli(), string(e.Kind), e.Path, e.Text})
	}
	return out
}

func describe(d *daemon.Device) device {
	out := device{
		UUID: d.Identity(), Index: d.Ordinal(), Name: d.Name, Key: d.Key(), Mode: d.Mode, Sim: d.Sim,
		Fault: d.Fault,
		Units: d.Units, Total: d.Memory, Used: d.MemoryUsed, Strangers: []stranger{},
	}
	if d.Utilisation >= 0 {
		out.Utilisation = &d.Utilisation
	}
	for i := range d.Processes {
		if p := &d.Processes[i]; p.Path == "" {
			out.Strangers = append(out.Strangers, stranger{p.PID, p.Comm, p.Memory})
		}
	}
	return out
}

func branch(n *daemon.NodeState, names map[gpu.UUID]string) treeNode {
	out := treeNode{
		ID: identifier(n.ID), Path: n.Path, Kind: n.Kind, Persistent: n.Persistent, State: n.State, Gang: n.Gang,
		Devices: make([]nodeDevice, len(n.Devices)), Clients: make([]client, len(n.Clients)),
	}
	for i := range n.Devices {
		d := &n.Devices[i]
		out.Devices[i] = nodeDevice{
			UUID: names[d.Device], State: d.State, Used: d.MemoryUsed, Peak: d.MemoryPeak,
			Cap: d.Effective.Compute, Min: d.Effective.Min, Weight: d.Effective.Weight, Priority: d.Effective.Priority,
			Busy: d.Busy.Seconds(), Launches: d.Launches, Requested: requested(d.Requested),
		}
		if d.Measured {
			out.Devices[i].Asked, out.Devices[i].Delivered = &d.Asked, &d.Delivered
		}
		if d.Effective.MemoryMax != region.NoLimit {
			out.Devices[i].Limit = &d.Effective.MemoryMax
		}
	}
	for i := range n.Clients {
		c := &n.Clients[i]
		out.Clients[i] = client{c.PID, c.UID, c.Comm, c.Memory}
	}
	return out
}

func identifier(id uint64) string { return fmt.Sprintf("%016x", id) }

func (s *Server) getState(w http.ResponseWriter, _ *http.Request) {
	snapshot := s.source.Snapshot()
	reply(w, http.StatusOK, s.state(&snapshot))
}

func (s *Server) getHistory(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, s.history.document())
}

// session says whether the page can change something at all, and whether this caller may.
type session struct {
	Editable   bool `json:"editable"`
	Authorized bool `json:"authorized"`
}

func (s *Server) getSession(w http.ResponseWriter, r *http.Request) {
	reply(w, http.StatusOK, session{s.token != "", s.authorized(r)})
}

// change is the body of POST /api/write.
type change struct {
	Path  string            `json:"path"`
	Files map[string]string `json:"files"`
}

// maxChange bounds the body of a change, in bytes.
const maxChange = 64 << 10

func (s *Server) postWrite(w http.ResponseWriter, r *http.Request) {
	if s.token == "" {
		refuse(w, http.StatusForbidden, "this page changes nothing")
		return
	}
	if !s.authorized(r) {
		refuse(w, http.StatusUnauthorized, "the token is missing or wrong; it is in "+TokenFile+" in the runtime folder")
		return
	}
	// The token is proof enough. This catches a page of somebody else that a user was talked into giving it to.
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		refuse(w, http.StatusForbidden, "changes must come from this page")
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, "a change is application/json")
		return
	}
	var c change
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxChange))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		refuse(w, http.StatusBadRequest, "a change is {\"path\": …, \"files\": {NAME: TEXT}}: "+err.Error())
		return
	}
	if c.Path == "" || len(c.Files) == 0 {
		refuse(w, http.StatusBadRequest, "a change names a path and files")
		return
	}
	err := typed(c.Files)
	if err == nil {
		err = s.o.Write(r.Context(), c.Path, c.Files)
	}
	if err != nil {
		s.o.Log.Info("a change by the page was refused", "path", c.Path, "files", c.Files, "from", r.RemoteAddr, "error", err)
		refuse(w, status(err), sentence(err))
		return
	}
	s.o.Log.Info("limits were changed by the page", "path", c.Path, "files", c.Files, "from", r.RemoteAddr)
	w.WriteHeader(http.StatusNoContent)
}

// typed checks what people typed into the fields of the page.
func typed(files map[string]string) error {
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if err := limits.Typed(file, files[file]); err != nil {
			return err
		}
	}
	return nil
}

// sentence is an error with what to do about it.
func sentence(err error) string {
	var h interface{ Hint() string }
	if errors.As(err, &h) && h.Hint() != "" {
		return err.Error() + "; " + h.Hint()
	}
	return err.Error()
}

// status is what HTTP has for an error of the tree.
func status(err error) int {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return http.StatusInternalServerError
	}
	switch errno {
	case syscall.ENOENT, syscall.ENODEV:
		return http.StatusNotFound
	case syscall.EPERM, syscall.EACCES, syscall.EROFS:
		return http.StatusForbidden
	case syscall.EBUSY, syscall.EEXIST, syscall.ENOTEMPTY:
		return http.StatusConflict
	case syscall.EIO:
		return http.StatusInternalServerError
	}
	return http.StatusUnprocessableEntity
}

// refuse answers with a sentence for people.
func refuse(w http.ResponseWriter, status int, text string) {
	reply(w, status, struct {
		Error string `json:"error"`
	}{text})
}

func reply(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The client is gone where this fails, and there is nobody to tell.
	_, _ = w.Write(data)
}
