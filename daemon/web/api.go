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

	"github.com/lgpu/lgpu/api/state"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/daemon/view"
	"github.com/lgpu/lgpu/policy/limits"
)

// happened is an event as the page reads it. What the daemon is like it reads as state.State, as all programs do.
type happened struct {
	Seq  uint64 `json:"seq"`
	Time int64  `json:"time"` // Unix ms
	Kind string `json:"kind"`
	Path string `json:"path"`
	Text string `json:"text"`
}

// shownEvents is the number of events that the page has.
const shownEvents = 30

// recent are the last events that are seen, newest first.
func (s *Server) recent(look view.Look) []happened {
	out := []happened{}
	all := s.source.Recent()
	for i := len(all) - 1; i >= 0 && len(out) < shownEvents; i-- {
		e := &all[i]
		if !look.Event(*e) {
			continue
		}
		out = append(out, happened{e.Seq, e.Time.UnixMilli(), string(e.Kind), e.Path, e.Text})
	}
	return out
}

// since is recent, or nil if none of what is seen came after the event with a number: the same again would say that others
// have done something.
func (s *Server) since(look view.Look, told uint64) any {
	events := s.recent(look)
	if len(events) == 0 || events[0].Seq <= told {
		return nil
	}
	return events
}

// document is the state that a snapshot shows.
func document(snapshot daemon.Snapshot) *state.State { return state.Of(view.Snapshot(snapshot)) }

func identifier(id uint64) string { return fmt.Sprintf("%016x", id) }

func (s *Server) getState(w http.ResponseWriter, r *http.Request) {
	reply(w, http.StatusOK, document(s.lookOf(r).Snapshot(s.source.Snapshot())))
}

func (s *Server) getEvents(w http.ResponseWriter, r *http.Request) {
	reply(w, http.StatusOK, s.recent(s.lookOf(r)))
}

func (s *Server) getHistory(w http.ResponseWriter, r *http.Request) {
	reply(w, http.StatusOK, s.history.document(s.lookOf(r)))
}

// session says whether the page can change something at all, and whether this caller is known, whose rights hold then.
type session struct {
	Editable   bool `json:"editable"`
	Authorized bool `json:"authorized"`
	// View is the parameter of the stream's address by which it knows her, too.
	View string `json:"view,omitempty"`
}

func (s *Server) getSession(w http.ResponseWriter, r *http.Request) {
	by, known := s.who(r)
	out := session{Editable: s.o.Write != nil, Authorized: known}
	if known {
		out.View = s.tokens.of(forSight, by.UID)
	}
	reply(w, http.StatusOK, out)
}

// change is the body of POST /api/write.
type change struct {
	Path  string            `json:"path"`
	Files map[string]string `json:"files"`
}

// maxChange bounds the body of a change, in bytes.
const maxChange = 64 << 10

func (s *Server) postWrite(w http.ResponseWriter, r *http.Request) {
	if s.o.Write == nil {
		refuse(w, http.StatusForbidden, "this page changes nothing")
		return
	}
	by, known := s.who(r)
	if !known {
		refuse(w, http.StatusUnauthorized, "the token is missing or wrong; lgpu page prints it")
		return
	}
	// A page of somebody else has no token. But the kernel says of its requests, too, whose they are.
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
		err = s.o.Write(r.Context(), by, c.Path, c.Files)
	}
	if err != nil {
		s.o.Log.Info("a change by the page was refused", "path", c.Path, "files", c.Files, "uid", by.UID, "from", r.RemoteAddr, "error", err)
		refuse(w, status(err), sentence(err))
		return
	}
	s.o.Log.Info("limits were changed by the page", "path", c.Path, "files", c.Files, "uid", by.UID, "from", r.RemoteAddr)
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
