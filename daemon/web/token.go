package web

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	accounts "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lgpu/lgpu/daemon/view"
	"github.com/lgpu/lgpu/internal/wholefile"
	"github.com/lgpu/lgpu/policy/limits"
)

// keyFile is the name of the key's file, in the folder of the daemon's state. Whoever removes it and restarts the daemon
// makes all tokens worthless.
const keyFile = "web.key"

// keySize is in bytes.
const keySize = 32

// Purposes of tokens. What one is good for the other is not.
const (
	forAll   = "page" // what the user may do
	forSight = "view" // what the user may see: it is in the address of streams, which carry no header
)

// tokens are made of a key and users, so that they are the same after a restart and need no list.
type tokens struct{ key []byte }

// openTokens reads the key in a folder, or makes one.
func openTokens(dir string) (tokens, error) {
	path := filepath.Join(dir, keyFile)
	key, err := os.ReadFile(path)
	if err == nil && len(key) == keySize {
		return tokens{key}, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return tokens{}, err
	}
	key = make([]byte, keySize)
	rand.Read(key) // it never fails
	if err := wholefile.WriteDurably(path, bytes.NewReader(key), 0o600); err != nil {
		return tokens{}, err
	}
	return tokens{key}, nil
}

// of returns a user's token.
func (t tokens) of(purpose string, uid uint32) string {
	mac := hmac.New(sha256.New, t.key)
	fmt.Fprintf(mac, "lgpu %s %d", purpose, uid)
	return fmt.Sprintf("%d-%s", uid, hex.EncodeToString(mac.Sum(nil)))
}

// user returns whose token it is, if it is one.
func (t tokens) user(purpose, token string) (uid uint32, ok bool) {
	number, _, _ := strings.Cut(token, "-")
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil || len(t.key) == 0 {
		return 0, false
	}
	return uint32(n), hmac.Equal([]byte(token), []byte(t.of(purpose, uint32(n))))
}

// members knows the groups of users, whom a token names without a process. What it found holds for a while.
type members struct {
	mu    sync.Mutex
	known map[uint32]member // guarded by mu
}

type member struct {
	gid    uint32
	groups []uint32
	at     time.Time
}

const (
	memberTime = time.Minute
	maxMembers = 1024
)

// author is a user as the tree knows callers.
func (m *members) author(uid uint32) limits.Author {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, known := m.known[uid]
	if !known || time.Since(u.at) > memberTime {
		if m.known == nil || len(m.known) >= maxMembers {
			m.known = map[uint32]member{}
		}
		u = look(uid)
		m.known[uid] = u
	}
	return limits.Author{UID: uid, GID: u.gid, Groups: func() []uint32 { return u.groups }}
}

// look asks the machine for a user's groups. Of one that it does not know there are none.
func look(uid uint32) member {
	out := member{gid: limits.Nobody, at: time.Now()}
	u, err := accounts.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return out
	}
	if gid, err := strconv.ParseUint(u.Gid, 10, 32); err == nil {
		out.gid = uint32(gid)
	}
	ids, err := u.GroupIds()
	if err != nil {
		return out
	}
	for _, id := range ids {
		if gid, err := strconv.ParseUint(id, 10, 32); err == nil {
			out.groups = append(out.groups, uint32(gid))
		}
	}
	return out
}

// who returns in whose name a request is made, and whether that is known: by its token; or without one by the kernel, if
// it comes straight from a user of this machine who is no administrator. An administrator needs the token, since a proxy
// may run as root. A wrong token is nobody's.
func (s *Server) who(r *http.Request) (limits.Author, bool) {
	stranger := limits.Author{UID: limits.Nobody, GID: limits.Nobody}
	if header := r.Header.Get("Authorization"); header != "" {
		token, bearer := strings.CutPrefix(header, "Bearer ")
		uid, ok := s.tokens.user(forAll, token)
		if !bearer || !ok {
			return stranger, false
		}
		return s.members.author(uid), true
	}
	if sight := r.URL.Query().Get("view"); sight != "" && r.Method == http.MethodGet {
		uid, ok := s.tokens.user(forSight, sight)
		if !ok {
			return stranger, false
		}
		return s.members.author(uid), true
	}
	v, visits := r.Context().Value(visitKey{}).(*visit)
	if !visits || !v.known || s.o.Tree == nil || r.Header.Get("Forwarded") != "" || r.Header.Get("X-Forwarded-For") != "" {
		return stranger, false
	}
	if by := s.members.author(v.uid); !s.o.Tree.Rights().Trusts(by) {
		return by, true
	}
	return stranger, false
}

// look is what somebody sees now.
func (s *Server) look(by limits.Author) view.Look {
	if s.o.Tree == nil {
		return view.Everything
	}
	return view.By(s.o.Tree, by)
}

// lookOf is what the sender of a request sees.
func (s *Server) lookOf(r *http.Request) view.Look {
	by, _ := s.who(r)
	return s.look(by)
}

// Metrics has h answer /metrics, /healthz and /readyz, where there is no page. Where users do not see all of each other,
// /metrics is for who sees everything: an administrator on this machine is recognised by the kernel, others by the
// Authorization of their page (lgpu page). Keys is as in Options.
func Metrics(h http.Handler, t *limits.Tree, keys string) (http.Handler, error) {
	key, err := openTokens(keys)
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	s := &Server{o: Options{Tree: t}, tokens: key}
	mux := http.NewServeMux()
	s.measure(mux, h)
	return mux, nil
}

// measure has h answer for metrics, which are private, and for the daemon's health, which is not.
func (s *Server) measure(mux *http.ServeMux, h http.Handler) {
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if !s.reads(r) {
			refuse(w, http.StatusForbidden, "what users do is shown to administrators only")
			return
		}
		h.ServeHTTP(w, r)
	})
	mux.Handle("GET /healthz", h)
	mux.Handle("GET /readyz", h)
}

// reads reports whether a request's sender sees everything, administrators of this machine without a token included.
func (s *Server) reads(r *http.Request) bool {
	if s.lookOf(r).All() {
		return true
	}
	v, visits := r.Context().Value(visitKey{}).(*visit)
	return visits && v.known && r.Header.Get("Authorization") == "" && s.look(s.members.author(v.uid)).All()
}
