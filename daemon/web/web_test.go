package web

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lgpu/lgpu/api/state"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/daemon/view"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// serve starts a page and returns its address.
func serve(t *testing.T, source Source, o Options) (*Server, string) {
	t.Helper()
	if o.Keys == "" {
		o.Keys = t.TempDir()
	}
	s, err := New(source, o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen("127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s, "http://" + l.Addr().String()
}

// ask sends a request and returns status and body.
func ask(t *testing.T, h http.Handler, method, url, body string, header ...string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequest(method, url, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), w.Body.String()
}

func unserved(t *testing.T, o Options) (*Server, *fake) {
	t.Helper()
	f := newFake()
	o.Keys = t.TempDir()
	if o.Write == nil {
		o.Write = f.Write
	}
	s, err := New(f, o)
	if err != nil {
		t.Fatal(err)
	}
	return s, f
}

// TestHost: a name that is not ours is refused, for every path, so that a page of somebody else cannot pose as this
// one.
func TestHost(t *testing.T) {
	s, _ := unserved(t, Options{Hosts: []string{"gpu.example"}})
	for host, want := range map[string]int{
		"localhost": 200, "localhost:9464": 200, "LOCALHOST:1": 200, "127.0.0.1:9464": 200, "127.0.0.1": 200,
		"[::1]:9464": 200,
		"[::1]":      200, "192.0.2.7:9464": 200, "gpu.example:9464": 200, "GPU.example": 200,
		"evil.example": 421, "evil.example:9464": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421, "": 421,
		":9464":         421,
		"x.gpu.example": 421, "localhost:1:2": 421,
	} {
		for _, path := range []string{"/", "/api/state", "/app.js", "/nothing"} {
			r := httptest.NewRequest("GET", "http://localhost"+path, nil)
			r.Host = host
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if path == "/nothing" && want == 200 {
				continue
			}
			if w.Code != want {
				t.Errorf("host %q, %s: %d, want %d", host, path, w.Code, want)
			}
		}
	}
}

// TestHeaders: what keeps foreign content out is on every answer.
func TestHeaders(t *testing.T) {
	s, _ := unserved(t, Options{})
	for _, path := range []string{"/", "/style.css", "/api/state", "/missing"} {
		r, _ := ask(t, s, "GET", "http://localhost"+path, "")
		if csp := r.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'self';") ||
			strings.Contains(csp, "unsafe") {
			t.Errorf("%s: policy %q", path, csp)
		}
		if r.Header.Get("X-Content-Type-Options") != "nosniff" || r.Header.Get("X-Frame-Options") != "DENY" {
			t.Errorf("%s: %v", path, r.Header)
		}
	}
}

// TestFiles: each file of the page is served as what it is, and once only to a browser that has it.
func TestFiles(t *testing.T) {
	s, _ := unserved(t, Options{})
	for path, kind := range map[string]string{
		"/": "text/html; charset=utf-8", "/style.css": "text/css; charset=utf-8", "/app.js": "text/javascript; charset=utf-8",
		"/icon.svg": "image/svg+xml",
	} {
		r, body := ask(t, s, "GET", "http://localhost"+path, "")
		if r.StatusCode != 200 || r.Header.Get("Content-Type") != kind || len(body) < 100 {
			t.Errorf("%s: %d, %s, %d bytes", path, r.StatusCode, r.Header.Get("Content-Type"), len(body))
		}
		r, body = ask(t, s, "GET", "http://localhost"+path, "", "If-None-Match", r.Header.Get("ETag"))
		if r.StatusCode != http.StatusNotModified || body != "" {
			t.Errorf("%s again: %d", path, r.StatusCode)
		}
	}
	if r, _ := ask(t, s, "GET", "http://localhost/index.html", ""); r.StatusCode != http.StatusNotFound {
		t.Errorf("index.html has a second address: %d", r.StatusCode)
	}
}

// TestNothingForeign: the page names no other host.
func TestNothingForeign(t *testing.T) {
	entries, err := page.ReadDir("page")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := page.ReadFile("page/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), "http://www.w3.org/2000/svg", "")
		for _, sign := range []string{"http:", "https:", "//cdn", "@import", "innerHTML", "eval(", "document.write"} {
			if strings.Contains(text, sign) {
				t.Errorf("%s contains %s", e.Name(), sign)
			}
		}
	}
}

const local = "http://localhost/api/write"

// TestWrite goes through what a change must have, one missing thing at a time.
func TestWrite(t *testing.T) {
	const good = `{"path": "/team", "files": {"memory.max": "8G"}}`
	s, f := unserved(t, Options{})
	token := "Bearer " + s.tokens.of(forAll, 0)
	for _, test := range []struct {
		name, body string
		header     []string
		want       int
		text       string
	}{
		{"good", good, []string{"Authorization", token, "Content-Type", "application/json"}, 204, ""},
		{"own page", good, []string{"Authorization", token, "Content-Type", "application/json; charset=utf-8",
			"Sec-Fetch-Site", "same-origin"}, 204, ""},
		{"no token", good, []string{"Content-Type", "application/json"}, 401, "lgpu page"},
		{"empty token", good, []string{"Authorization", "Bearer ", "Content-Type", "application/json"}, 401, "token"},
		{"token for the stream", good, []string{"Authorization", "Bearer " + s.tokens.of(forSight, 0), "Content-Type",
			"application/json"}, 401, "token"},
		{"another's number", good, []string{"Authorization", "Bearer 1" + s.tokens.of(forAll, 0), "Content-Type",
			"application/json"}, 401, "token"},
		{"wrong token", good, []string{"Authorization", token + "x", "Content-Type", "application/json"}, 401, "token"},
		{"bare token", good, []string{"Authorization", s.tokens.of(forAll, 0), "Content-Type", "application/json"}, 401, "token"},
		{"foreign page", good, []string{"Authorization", token, "Content-Type", "application/json", "Sec-Fetch-Site",
			"cross-site"}, 403, "this page"},
		{"neighbour", good, []string{"Authorization", token, "Content-Type", "application/json", "Sec-Fetch-Site",
			"same-site"}, 403, "this page"},
		{"form", good, []string{"Authorization", token, "Content-Type", "text/plain"}, 415, "json"},
		{"no type", good, []string{"Authorization", token}, 415, "json"},
		{"no JSON", "memory.max=8G", []string{"Authorization", token, "Content-Type", "application/json"}, 400, "change is"},
		{"unknown field", `{"path": "/", "mode": 1}`, []string{"Authorization", token, "Content-Type", "application/json"},
			400, "mode"},
		{"no path", `{"files": {"a": "b"}}`, []string{"Authorization", token, "Content-Type", "application/json"}, 400,
			"path"},
		{"no files", `{"path": "/"}`, []string{"Authorization", token, "Content-Type", "application/json"}, 400, "files"},
		{"no unit", `{"path": "/team", "files": {"memory.max": "0 8\n"}}`, []string{"Authorization", token, "Content-Type",
			"application/json"}, 422, "8GiB?"},
		{"too long", `{"path": "/` + strings.Repeat("x", maxChange) + `"}`, []string{"Authorization", token, "Content-Type",
			"application/json"}, 400, "large"},
	} {
		r, body := ask(t, s, "POST", local, test.body, test.header...)
		if r.StatusCode != test.want || !strings.Contains(body, test.text) {
			t.Errorf("%s: %d %s; want %d, %q", test.name, r.StatusCode, body, test.want, test.text)
		}
		select {
		case w := <-f.writes:
			if test.want != 204 || w.Path != "/team" || w.Files["memory.max"] != "8G" {
				t.Errorf("%s: written: %v", test.name, w)
			}
		default:
			if test.want == 204 {
				t.Errorf("%s: nothing was written", test.name)
			}
		}
	}
	for _, method := range []string{"GET", "PUT", "DELETE", "OPTIONS", "HEAD"} {
		if r, _ := ask(t, s, method, local, good, "Authorization", token, "Content-Type",
			"application/json"); r.StatusCode != 405 {
			t.Errorf("%s: %d", method, r.StatusCode)
		}
	}
}

// TestErrors: what the tree says reaches the user, with a fitting status.
func TestErrors(t *testing.T) {
	s, f := unserved(t, Options{})
	for err, want := range map[error]int{
		syscall.ENOENT: 404, syscall.ENODEV: 404, syscall.EINVAL: 422, syscall.ERANGE: 422, syscall.EBUSY: 409,
		syscall.EPERM: 403,
		syscall.EIO:   500, syscall.EOPNOTSUPP: 422, errors.New("no errno"): 500,
	} {
		f.writeErr = fmt.Errorf("/team memory.max %q: %w", "8Q", err)
		r, body := ask(t, s, "POST", local, `{"path": "/team", "files": {"memory.max": "8Q"}}`, "Authorization",
			"Bearer "+s.tokens.of(forAll, 0), "Content-Type", "application/json")
		var answer struct{ Error string }
		if e := json.Unmarshal([]byte(body), &answer); e != nil || r.StatusCode != want ||
			answer.Error != f.writeErr.Error() {
			t.Errorf("%v: %d %s, want %d", err, r.StatusCode, body, want)
		}
	}
}

// TestReadOnly: without Write nothing can be changed.
func TestReadOnly(t *testing.T) {
	s, err := New(newFake(), Options{Keys: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	r, _ := ask(t, s, "POST", local, `{"path": "/", "files": {"a": "b"}}`, "Authorization", "Bearer ", "Content-Type",
		"application/json")
	if r.StatusCode != http.StatusForbidden {
		t.Errorf("write: %d", r.StatusCode)
	}
	if _, body := ask(t, s, "GET", "http://localhost/api/session", "", "Authorization",
		"Bearer "); body != `{"editable":false,"authorized":false}` {
		t.Errorf("session: %s", body)
	}
}

// TestTokens: each user has one, which is the same after a restart, and good for nobody and nothing else. The key is for
// the daemon's user only, whatever was there before.
func TestTokens(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, keyFile)
	if err := os.WriteFile(path, []byte("short"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := New(newFake(), Options{Keys: dir})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 || info.Size() != keySize {
		t.Errorf("the key: %v, %v", info, err)
	}
	again, err := New(newFake(), Options{Keys: dir})
	if err != nil {
		t.Fatal(err)
	}
	other, err := New(newFake(), Options{Keys: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	token := s.tokens.of(forAll, 1000)
	if uid, ok := again.tokens.user(forAll, token); !ok || uid != 1000 {
		t.Errorf("after a restart it is %d's, %v", uid, ok)
	}
	for _, wrong := range []string{"", "1000", "1000-", "-", token + "0", token[1:], "1001" + token[4:], strings.ToUpper(token),
		"0" + token, s.tokens.of(forSight, 1000), other.tokens.of(forAll, 1000)} {
		if uid, ok := s.tokens.user(forAll, wrong); ok && wrong != token {
			t.Errorf("%q is %d's", wrong, uid)
		}
	}
	url := s.URL(&net.TCPAddr{IP: net.IPv6zero, Port: 80}, 1000)
	if url != "http://localhost:80/#token="+token {
		t.Errorf("address %s", url)
	}
	if _, err := New(newFake(), Options{Keys: filepath.Join(dir, "missing")}); err == nil {
		t.Error("a folder that is not there was no error")
	}
}

// TestWho: a user is known by her token, and without one by the kernel, unless she is an administrator or somebody stands
// between. What she sees and may do is hers.
func TestWho(t *testing.T) {
	tree := limits.New(limits.Options{Rights: limits.Rights{Owner: 7, Others: limits.OthersNone}})
	tree.Load(limits.State{Version: limits.StateVersion, LastID: 1000}) // the source has others
	if err := tree.Mkdir("/hers", 4242, 0); err != nil {
		t.Fatal(err)
	}
	s, f := unserved(t, Options{Tree: tree, Metrics: http.NotFoundHandler()})
	hers, _ := tree.Directory("/hers")
	f.touch(func(n *daemon.Snapshot) {
		n.Directories = append(n.Directories, daemon.Directory{Path: "/hers", ID: hers.ID, Kind: daemon.KindGroup})
	})
	from := func(uid uint32, r *http.Request) *http.Request {
		return r.WithContext(context.WithValue(r.Context(), visitKey{}, &visit{origin: origin{"", uid, true}}))
	}
	get := func(uid uint32, url string, header ...string) (int, string) {
		r := from(uid, httptest.NewRequest("GET", "http://localhost"+url, nil))
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	const known, unknown = `"authorized":true`, `"authorized":false`
	bearer := func(uid uint32) string { return "Bearer " + s.tokens.of(forAll, uid) }
	for _, c := range []struct {
		uid    uint32
		header []string
		want   string
	}{
		{4242, nil, known},
		{4242, []string{"X-Forwarded-For", "10.0.0.1"}, unknown},
		{4242, []string{"Authorization", "Bearer x"}, unknown},
		{0, nil, unknown},
		{7, nil, unknown},
		{0, []string{"Authorization", bearer(0)}, known},
		{9, []string{"Authorization", bearer(4242)}, known},
	} {
		if _, body := get(c.uid, "/api/session", c.header...); !strings.Contains(body, c.want) {
			t.Errorf("%d %q: %s", c.uid, c.header, body)
		}
	}
	for _, c := range []struct {
		uid         uint32
		url         string
		header      []string
		hers, other bool
	}{
		{4242, "/api/state", nil, true, false},
		{4343, "/api/state", nil, false, false},
		{4343, "/api/state", []string{"Authorization", bearer(0)}, true, true},
		{4343, "/api/state?view=" + s.tokens.of(forSight, 4242), nil, true, false},
		{4242, "/api/state?view=x", nil, false, false},
	} {
		_, body := get(c.uid, c.url, c.header...)
		if strings.Contains(body, `"/hers"`) != c.hers || strings.Contains(body, `"/vision`) != c.other {
			t.Errorf("%d %s %q sees hers %v: %.300s", c.uid, c.url, c.header, c.hers, body)
		}
	}
	if _, body := get(4242, "/api/events"); strings.Contains(body, "/vision") {
		t.Errorf("events of others: %s", body)
	}
	for uid, want := range map[uint32]int{4242: 403, 0: 404, 7: 404} {
		if code, _ := get(uid, "/metrics"); code != want {
			t.Errorf("metrics for %d: %d", uid, code)
		}
	}
}

func TestListen(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "localhost:0", "127.7.7.7:0"} {
		l, err := Listen(address, false)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		l.Close()
	}
	for _, address := range []string{":0", "0.0.0.0:0", "[::]:0", "192.0.2.1:0"} {
		if l, err := Listen(address, false); !errors.Is(err, ErrNotLoopback) {
			t.Errorf("%s: %v, %v", address, l, err)
		}
	}
	for _, address := range []string{"127.0.0.1", "127.0.0.1:port", ""} {
		if l, err := Listen(address, false); err == nil {
			t.Errorf("%q: %v", address, l.Addr())
		}
	}
	l, err := Listen("0.0.0.0:0", true)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if l, err = Listen("127.0.0.1:0", false); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// It is opened for metrics, too, which no browser reads.
	if _, err := Listen(l.Addr().String(), false); !errors.Is(err, syscall.EADDRINUSE) || strings.Contains(err.Error(), "browser") ||
		!strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("an address in use: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "lgpu_up 1\n") })
	s, _ := unserved(t, Options{Metrics: handler})
	without, _ := unserved(t, Options{})
	for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
		if r, body := ask(t, s, "GET", "http://localhost"+path, ""); r.StatusCode != 200 || body != "lgpu_up 1\n" {
			t.Errorf("%s: %d %s", path, r.StatusCode, body)
		}
		if r, body := ask(t, s, "GET", "http://evil.example"+path, ""); r.StatusCode != 421 || strings.Contains(body, "lgpu") {
			t.Errorf("%s for another host: %d %s", path, r.StatusCode, body)
		}
		if r, _ := ask(t, without, "GET", "http://localhost"+path, ""); r.StatusCode != 404 {
			t.Errorf("%s without: %d", path, r.StatusCode)
		}
	}
}

// stream reads server-sent events.
type stream struct {
	t      *testing.T
	lines  *bufio.Scanner
	cancel context.CancelFunc
}

func open(t *testing.T, url string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", url+"/api/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	t.Cleanup(cancel)
	if kind := answer.Header.Get("Content-Type"); answer.StatusCode != 200 || kind != "text/event-stream" {
		t.Fatalf("stream: %s, %s", answer.Status, kind)
	}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	return &stream{t, lines, cancel}
}

// next returns the next event of a name, and skips others.
func (s *stream) next(name string, v any) {
	s.t.Helper()
	for s.lines.Scan() {
		if s.lines.Text() != "event: "+name || !s.lines.Scan() {
			continue
		}
		data := strings.TrimPrefix(s.lines.Text(), "data: ")
		if err := json.Unmarshal([]byte(data), v); err != nil {
			s.t.Fatalf("%s: %v in %s", name, err, data)
		}
		return
	}
	s.t.Fatalf("the stream ended before %s: %v", name, s.lines.Err())
}

// TestStream: states and turns come, the daemon is in use while they do, and nobody reads turns for nobody.
func TestStream(t *testing.T) {
	f := newFake()
	f.slices = make(chan []daemon.Slice)
	_, url := serve(t, f, Options{})
	if subscriptions, uses := f.open(); subscriptions != 0 || uses != 0 {
		t.Errorf("without a browser %d subscriptions and %d uses", subscriptions, uses)
	}
	s := open(t, url)
	var events []happened
	s.next("events", &events)
	if events[0].Kind != string(daemon.LimitChanged) {
		t.Errorf("events are not newest first: %+v", events)
	}
	var got state.State
	s.next("state", &got)
	if len(got.Devices) != 2 || got.LGPUs[2].ID != "0000000000000003" || got.Devices[1].Utilisation != nil ||
		got.Groups[0].Devices[0].Effective.MemoryMax != nil {
		t.Errorf("%+v", got)
	}
	start := time.UnixMicro(1_790_000_000_000_123)
	f.slices <- []daemon.Slice{
		{Device: first, ID: 3, Start: start, End: start.Add(2 * time.Millisecond)},
		{Device: second, ID: 5, Start: start, End: start.Add(time.Millisecond)},
		{Device: first, ID: 1 << 63, Start: start.Add(3 * time.Millisecond), End: start.Add(4 * time.Millisecond)},
	}
	var turns turns
	s.next("turns", &turns)
	want := `{[GPU-11223344-0000-0000-0000-000000000001 GPU-55667788-0000-0000-0000-000000000002] ` +
		`[0000000000000003 0000000000000005 8000000000000000] ` +
		`[[0 0 1790000000000123 2000] [1 1 1790000000000123 1000] [0 2 1790000000003123 1000]] 0}`
	if fmt.Sprint(turns) != want {
		t.Errorf("turns %v, want %s", turns, want)
	}
	f.touch(func(s *daemon.Snapshot) { s.Daemon.Version = "later" })
	for got.Daemon.Version != "later" {
		s.next("state", &got)
	}
	if subscriptions, uses := f.open(); subscriptions != 1 || uses != 1 {
		t.Errorf("with a browser %d subscriptions and %d uses", subscriptions, uses)
	}
	s.cancel()
	for late := time.After(20 * time.Second); ; {
		// The subscription is given back after the turns that show that nobody watches.
		select {
		case f.slices <- nil:
		case <-time.After(time.Millisecond):
		case <-late:
			t.Fatal("the subscription or the use is not given back")
		}
		if subscriptions, uses := f.open(); subscriptions == 0 && uses == 0 {
			break
		}
	}
}

// TestStreamsAreBounded: no number of browsers takes the daemon's memory, no visitor has all streams, and one that
// leaves makes room.
func TestStreamsAreBounded(t *testing.T) {
	s, url := serve(t, newFake(), Options{})
	var streams []*stream
	for range maxEach {
		streams = append(streams, open(t, url))
	}
	answer, err := http.Get(url + "/api/stream")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one too many: %s", answer.Status)
	}
	streams[0].cancel()
	for s.hub.count() == maxEach {
		time.Sleep(time.Millisecond)
	}
	open(t, url)
	var h hub
	for i := range maxStreams {
		if _, err := h.open(fmt.Sprint(i), limits.Author{}); err != nil {
			t.Errorf("stream %d: %v", i, err)
		}
	}
	if _, err := h.open("another", limits.Author{}); err == nil {
		t.Errorf("%d streams", maxStreams+1)
	}
}

// TestSlowBrowser: one that reads nothing neither stops the others nor gathers messages without end.
func TestSlowBrowser(t *testing.T) {
	var h hub
	slow, _ := h.open("slow", limits.Author{})
	quick, _ := h.open("quick", limits.Author{})
	for i := range 10 * backlog {
		h.publish(func(limits.Author) message { return message{"state", []byte{byte(i)}} })
		<-quick
	}
	if len(slow) != backlog {
		t.Errorf("%d messages wait", len(slow))
	}
}

// TestDaemonEnds: a subscription that ends does not end the page, and is not asked again and again.
func TestDaemonEnds(t *testing.T) {
	f := newFake()
	f.slices = make(chan []daemon.Slice)
	_, url := serve(t, f, Options{})
	s := open(t, url)
	close(f.slices)
	var got state.State
	for range 2 {
		s.next("state", &got)
	}
}

// TestHistory: it is bounded in time and in rows, keeps the busiest, and has null for what was not there.
func TestHistory(t *testing.T) {
	var h history
	at := time.Unix(1_790_000_000, 0)
	sample := func(i int, ids ...uint64) {
		s := daemon.Snapshot{At: at.Add(time.Duration(i) * time.Second),
			Devices: []daemon.Device{{Device: gpu.Device{UUID: first}}}}
		for _, id := range ids {
			s.Directories = append(s.Directories, daemon.Directory{ID: id, Kind: daemon.KindLgpu, Path: fmt.Sprint("/", id),
				Devices: []daemon.DeviceUse{
					{Device: first, Asked: uint32(id * 100), Delivered: uint32(id), Measured: true},
				}})
		}
		s.Directories = append(s.Directories, daemon.Directory{ID: 98, Kind: daemon.KindLgpu, Path: "/unmeasured",
			Devices: []daemon.DeviceUse{{Device: first}}})
		s.Directories = append(s.Directories, daemon.Directory{ID: 99, Kind: daemon.KindGroup, Devices: []daemon.DeviceUse{{Device: first}}})
		h.add(&s)
	}
	sample(0, 1)
	sample(1, 1, 2)
	sample(2, 2)
	text, err := json.Marshal(h.document(view.Everything))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"times":[1790000000000,1790000001000,1790000002000],"rows":[` +
		`{"id":"0000000000000001","device":"GPU-11223344-0000-0000-0000-000000000001","path":"/1","asked":[1,1,null],"delivered":[0.01,0.01,null]},` +
		`{"id":"0000000000000002","device":"GPU-11223344-0000-0000-0000-000000000001","path":"/2","asked":[null,2,2],"delivered":[null,0.02,0.02]}]}`
	if string(text) != want {
		t.Errorf("%s\nwant\n%s", text, want)
	}
	many := make([]uint64, 1000)
	for i := range many {
		many[i] = uint64(i)
	}
	sample(3, many...)
	if n := len(h.samples[3].shares); n != maxRows || h.samples[3].shares[0].id != 999 {
		t.Errorf("%d shares, the first of %d", n, h.samples[3].shares[0].id)
	}
	for i := range 2 * maxSamples {
		sample(4+i, 1)
	}
	if d := h.document(view.Everything); len(d.Times) != maxSamples || len(d.Rows) != 1 ||
		d.Times[0] != 1790000000000+1000*(2*maxSamples+4-maxSamples) {
		t.Errorf("%d times from %d, %d rows", len(d.Times), d.Times[0], len(d.Rows))
	}
}

// FuzzWrite: whatever is posted, nothing is written without the token, and every refusal is a sentence.
func FuzzWrite(f *testing.F) {
	source := newFake()
	s, err := New(source, Options{Keys: f.TempDir(), Write: func(context.Context, limits.Author, string,
		map[string]string) error {
		return syscall.EINVAL
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("Bearer x", "application/json", `{"path": "/", "files": {"a": "b"}}`)
	f.Add("", "text/html", "")
	f.Add("Bearer "+strings.Repeat("A", 26), "application/json;", "[{}]")
	f.Fuzz(func(t *testing.T, authorization, kind, body string) {
		r := httptest.NewRequest("POST", local, strings.NewReader(body))
		for _, token := range []string{authorization, "Bearer " + s.tokens.of(forAll, 0)} {
			r.Header = http.Header{"Authorization": {token}, "Content-Type": {kind}}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if w.Code < 400 || token != "Bearer "+s.tokens.of(forAll, 0) && w.Code != http.StatusUnauthorized {
				t.Errorf("%q %q %q: %d", token, kind, body, w.Code)
			}
			var answer struct{ Error string }
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.Error == "" {
				t.Errorf("%q %q %q: %s", token, kind, body, w.Body)
			}
		}
	})
}

// FuzzHost: a name passes only if it is an address, localhost, or one that was given.
func FuzzHost(f *testing.F) {
	hosts := []string{"gpu.example"}
	for _, host := range []string{"localhost:80", "[::1]:80", "[::1]", "127.0.0.1", "evil.example", "[localhost]", "::1",
		"[gpu.example]:1", "fe80::1%eth0"} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		lower := strings.ToLower(host)
		if known(host, hosts) && !strings.Contains(lower, "localhost") && !strings.Contains(lower, "gpu.example") &&
			!strings.ContainsAny(host, "0123456789:") {
			t.Errorf("%q passes", host)
		}
	})
}
