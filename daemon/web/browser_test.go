package web

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/lgpu/lgpu/daemon"
)

var pictures = flag.String("pictures", "", "write screenshots to this folder")

// browser is a tab that shows a page of a fake daemon.
type browser struct {
	t      *testing.T
	ctx    context.Context
	fake   *fake
	url    string
	dir    string             // the daemon's runtime folder
	stop   context.CancelFunc // ends the daemon
	mu     sync.Mutex
	errors []string // guarded by mu; what the console complains of
}

// show starts a daemon and a browser with its page, with the token or without.
func show(t *testing.T, f *fake, token bool) *browser {
	t.Helper()
	dir := t.TempDir()
	s, err := New(f, Options{Keys: dir, Write: f.Write})
	if err != nil {
		t.Fatal(err)
	}
	story(&s.history)
	l, err := Listen("127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, ctx: chrome(t), fake: f, url: s.URL(l.Addr(), 0), dir: dir}
	if !token {
		b.url, _, _ = strings.Cut(b.url, "#")
	}
	ctx, stop := context.WithCancel(t.Context())
	b.stop = stop
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	b.listen()
	b.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(b.url), chromedp.WaitVisible(chromedp.CSS("tr.lgpu")))
	return b
}

// listen collects what the console complains of, breaches of the content security policy included.
func (b *browser) listen() {
	err := chromedp.Listen(b.ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			b.errors = append(b.errors, e.ExceptionDetails.Text)
		case *log.EventEntryAdded:
			b.errors = append(b.errors, e.Entry.Text)
		}
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.errors
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// eval returns the value of an expression in the page.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits for a condition in the page.
func (b *browser) until(condition string) {
	b.t.Helper()
	for !eval[bool](b, condition) {
		if b.ctx.Err() != nil {
			b.t.Fatalf("never came true: %s", condition)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (b *browser) click(selector string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

// picture keeps a screenshot where somebody asked for them.
func (b *browser) picture(name string) {
	b.t.Helper()
	if *pictures == "" {
		return
	}
	data, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(*pictures, name), data, 0o644)
	}
	if err != nil {
		b.t.Error(err)
	}
}

// chrome starts a browser of its own. Without one on this machine the test is skipped, but not where CI says that there
// must be one.
func chrome(t *testing.T) context.Context {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		if os.Getenv("CI") != "" {
			t.Fatal("there is no Chromium, which CI must install (Debian: chromium)")
		}
		t.Skip("there is no Chromium (Debian: chromium)")
	}
	allocator, cancel := chromedp.NewExecAllocator(t.Context(),
		chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()), chromedp.NoFirstRun, chromedp.Headless,
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-quic", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-dev-shm-usage", true),
	)
	t.Cleanup(cancel)
	tab, end := chromedp.NewContext(allocator)
	t.Cleanup(end)
	if err := chromedp.Do(tab); err != nil { // the browser lives as long as the context of its first call
		t.Fatal(err)
	}
	bounded, stop := context.WithTimeout(tab, time.Minute)
	t.Cleanup(stop)
	return bounded
}

// short makes expressions short.
const short = "one = s => document.querySelector(s); all = s => document.querySelectorAll(s); "

// TestPage looks at what the page shows of a machine, and at what it does when that changes.
func TestPage(t *testing.T) {
	b := show(t, newFake(), true)
	if hash := eval[string](b, "location.href"); strings.Contains(hash, "token") {
		t.Errorf("the token stays in the address: %s", hash)
	}
	for what, want := range map[string]string{
		"one('#summary').textContent":                                       "2 devices, 5 lgpus, 5 processes",
		"one('.card h2').textContent":                                       "0NVIDIA H200",
		"one('.card .chip').textContent":                                    "195:0",
		"String(all('.card').length)":                                       "2",
		"one('.card .legend li:nth-child(2) .path').textContent":            "/vision/train",
		"one('.card .legend li:last-child .path').textContent":              "without an lgpu: blender (99)",
		"[...all('#nodes .node b')].map(e => e.textContent)+''":             "/,python-4712,vision,eval,train,voice,live,night-batch",
		"one('tr:nth-child(4) .memory').textContent":                        "15 GiB / 16 GiB",
		"one('tr:nth-child(4) td[data-label=\"compute.max\"]').textContent": "25 %",
		"one('tr:nth-child(7) td[data-label=\"lgpu.weight\"]').textContent": "100 latency",
		"one('tr:nth-child(7) td[data-label=\"compute.min\"]').textContent": "10 %",
		"one('#events li').textContent.includes('compute.min')+''":          "true",
		"one('.stack').getAttribute('aria-label').slice(0, 29)":             "Memory: /vision/eval 15 GiB, ",

		"(one('.stack i:nth-child(2)').offsetWidth / one('.stack').offsetWidth).toFixed(2)": "0.34",
	} {
		if got := eval[string](b, short+what); got != want {
			t.Errorf("%s is %q, want %q", what, got, want)
		}
	}
	// Turns arrive and are drawn in the colours of their lgpus, and the past is drawn.
	b.until(`(() => {
		const c = document.querySelector(".timeline canvas");
		const colours = new Set(), data = c.getContext("2d").getImageData(0, 8, c.width, 1).data;
		for (let i = 0; i < data.length; i += 4) colours.add(data.slice(i, i + 3).join());
		return colours.size > 4;
	})()`)
	b.until(`(() => {
		const c = document.querySelector(".past canvas");
		const data = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
		let drawn = 0;
		for (let i = 3; i < data.length; i += 4) if (data[i] > 200) drawn++;
		return drawn > 1000;
	})()`)
	b.picture("light.png")
	b.click("#theme")
	b.click("#theme")
	ground := "document.documentElement.dataset.theme + getComputedStyle(document.body).backgroundColor"
	if got := eval[string](b, ground); got != "darkrgb(14, 19, 27)" {
		t.Errorf("dark is %s", got)
	}
	b.picture("dark.png")

	b.fake.touch(func(s *daemon.Snapshot) {
		s.Devices, s.Directories = s.Devices[:1], s.Directories[2:5]
		s.Devices[0].Fault = "fell off the bus"
	})
	b.until("document.querySelectorAll('.card').length === 1 && document.querySelectorAll('#nodes tr').length === 3")
	if got := eval[string](b, "document.querySelector('.fault').textContent"); got != "Out of order: fell off the bus" {
		t.Errorf("fault: %q", got)
	}
	b.fake.touch(func(s *daemon.Snapshot) { s.Devices, s.Directories = nil, nil })
	b.until(short + "one('#devices').textContent.startsWith('No devices') && one('#tree').hidden")
	b.fake.touch(nil)
	b.until("document.querySelectorAll('.card').length === 2 && !document.querySelector('.note')")

	hosts := eval[[]string](b, "[...new Set(performance.getEntriesByType('resource').map(r => new URL(r.name).host))]")
	if len(hosts) != 1 {
		t.Errorf("resources come from %q", hosts)
	}
	if c := b.complaints(); len(c) > 0 {
		t.Errorf("the console says %q", c)
	}
	b.stop()
	b.until("document.getElementById('live').dataset.state === 'lost'")
}

// TestEdit changes limits with the form, and is refused.
func TestEdit(t *testing.T) {
	b := show(t, newFake(), true)
	b.click(`button[aria-label="Edit limits of /vision/eval on device 0"]`)
	b.do(chromedp.WaitVisible(chromedp.CSS("#editor")))
	for name, want := range map[string]string{
		"memory.max": "16GiB", "memory.high": "", "compute.max": "25", "compute.min": "", "lgpu.weight": "",
		"lgpu.priority": "", "lgpu": "",
	} {
		if got := eval[string](b, fmt.Sprintf("document.querySelector('#editor [name=%q]').value", name)); got != want {
			t.Errorf("%s holds %q, want %q", name, got, want)
		}
	}
	b.picture("editor.png")
	set := func(name, value string) {
		eval[string](b, fmt.Sprintf("document.querySelector('#editor [name=%q]').value = %q", name, value))
	}
	set("memory.max", "20GiB")
	set("compute.max", "")
	set("lgpu", "66")
	set("lgpu.priority", "high")
	b.fake.mu.Lock()
	b.fake.writeErr = fmt.Errorf("/vision: memory.max is less than <b>that</b>: %w", syscall.ERANGE)
	b.fake.mu.Unlock()
	b.click("#editor [type=submit]")
	b.do(chromedp.WaitVisible(chromedp.CSS("#editor .error")))
	if got := eval[string](b, "document.querySelector('#editor .error').textContent"); !strings.Contains(got,
		"less than <b>that</b>") {
		t.Errorf("the error is shown as %q", got)
	}
	b.fake.mu.Lock()
	b.fake.writeErr = nil
	b.fake.mu.Unlock()
	b.click("#editor [type=submit]")
	got := <-b.fake.writes
	want := change{"/vision/eval", map[string]string{
		"memory.max": "195:0 20GiB\n", "compute.max": "195:0 max\n", "lgpu": "195:0 count=66\n",
		"lgpu.priority": "195:0 high\n",
	}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("written: %v, want %v", got, want)
	}
	b.until("!document.getElementById('editor').open")

	b.click(`button[aria-label="Edit limits of /vision/eval on device 0"]`)
	b.click("#editor [type=submit]") // nothing was changed, so that nothing is written
	b.until("!document.getElementById('editor').open")
	select {
	case w := <-b.fake.writes:
		t.Errorf("written without a change: %v", w)
	default:
	}
}

// TestUnlock: without the token nothing can be edited; with it, everything.
func TestUnlock(t *testing.T) {
	b := show(t, newFake(), false)
	shown := "document.querySelector('td.act').offsetWidth > 0"
	if eval[bool](b, shown) {
		t.Error("limits can be edited without the token")
	}
	key, err := openTokens(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	b.click("#unlock")
	b.do(chromedp.WaitVisible(chromedp.CSS("#gate")), chromedp.SendKeys(chromedp.CSS("#gate [name=token]"), "wrong"))
	b.click("#gate [type=submit]")
	b.do(chromedp.WaitVisible(chromedp.CSS("#gate .error")))
	eval[string](b, fmt.Sprintf("document.querySelector('#gate [name=token]').value = %q",
		key.of(forAll, 0)))
	b.click("#gate [type=submit]")
	b.until("!document.getElementById('gate').open && " + shown)
	if !eval[bool](b, "document.getElementById('unlock').hidden") {
		t.Error("the way in is still offered")
	}
}

// TestAnotherDaemon: while no daemon answers, what is shown is not as bright as what is true. The next one may have
// another token, which the page can be given.
func TestAnotherDaemon(t *testing.T) {
	b := show(t, newFake(), true)
	edit := "document.querySelector('td.act').offsetWidth > 0"
	b.until(edit + " && !document.body.classList.contains('stale')")
	address := eval[string](b, "location.host")
	b.stop()
	b.until("document.body.classList.contains('stale') && getComputedStyle(document.querySelector('main')).opacity < 1")
	// The port is free as soon as the daemon before has ended.
	dir := t.TempDir()
	s, err := New(b.fake, Options{Keys: dir, Write: b.fake.Write})
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(address, false)
	for ; errors.Is(err, syscall.EADDRINUSE) && t.Context().Err() == nil; l, err = Listen(address, false) {
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { served <- s.Serve(ctx, l) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	b.until("!document.body.classList.contains('stale') && !document.getElementById('unlock').hidden && !(" + edit + ")")
	b.click("#unlock")
	b.do(chromedp.WaitVisible(chromedp.CSS("#gate")))
	eval[string](b, fmt.Sprintf("document.querySelector('#gate [name=token]').value = %q", s.tokens.of(forAll, 0)))
	b.click("#gate [type=submit]")
	b.until("!document.getElementById('gate').open && " + edit)
}

// TestPhone: nothing is wider than a small screen.
func TestPhone(t *testing.T) {
	b := show(t, newFake(), true)
	for _, width := range []int64{320, 390, 700, 1000} {
		b.do(chromedp.EmulateViewport(width, 844, chromedp.EmulateMobile), chromedp.Navigate("about:blank"),
			chromedp.Navigate(b.url),
			chromedp.WaitVisible(chromedp.CSS("tr.lgpu")))
		wide := eval[[]string](b, `[...document.querySelectorAll("body *")]
			.filter(e => !e.closest(".hidden, .skip, thead, dialog"))
			.filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
			.map(e => e.tagName + "." + e.className)`)
		if len(wide) > 0 {
			t.Errorf("at %d: wider than the screen: %q", width, wide)
		}
		if width == 390 {
			b.until("[...document.querySelectorAll('.timeline canvas')].every(c => c.width > 0)")
			b.picture("phone.png")
		}
	}
}

// TestNamesAreText: whatever others chose as names is shown as it is, and never becomes part of the page.
func TestNamesAreText(t *testing.T) {
	f := newFake()
	const evil = `<img src=x onerror="window.owned=1"><script>window.owned=1</script>"'&`
	f.touch(func(s *daemon.Snapshot) {
		s.Devices[0].Name, s.Devices[0].Fault, s.Devices[1].Sim, s.Daemon.Version = evil, evil, evil, evil
		s.Devices[0].Processes[1].Comm = evil
		s.Directories[1].Path, s.Directories[1].Gang, s.Directories[1].Clients[0].Comm = "/"+evil, evil, evil
		s.Directories[1].Devices[0].State = evil
	})
	b := show(t, f, true)
	b.click(`button[aria-label^="Edit limits of /vision/eval"]`)
	if eval[bool](b, "window.owned === 1 || document.querySelector('img[src=x], main script') !== null") {
		t.Error("a name became part of the page")
	}
	if !eval[bool](b, "document.querySelector('.fault').textContent.includes('<img src=x')") {
		t.Error("the text is not shown")
	}
	if c := b.complaints(); len(c) > 0 {
		t.Errorf("the console says %q", c)
	}
}

// TestPolicyHolds: the content security policy is in force, and keeps out what should ever get into the page.
func TestPolicyHolds(t *testing.T) {
	b := show(t, newFake(), true)
	eval[json.RawMessage](b, `(() => {
		const s = document.createElement("script");
		s.textContent = "window.owned = 1";
		document.body.append(s);
		const i = new Image();
		i.src = "http://127.0.0.2:1/x.png";
		document.body.append(i);
		return null;
	})()`)
	if eval[bool](b, "window.owned === 1") {
		t.Error("an inline script ran")
	}
	for len(b.complaints()) < 2 {
		if b.ctx.Err() != nil {
			t.Fatalf("the browser refused nothing but %q", b.complaints())
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, c := range b.complaints() {
		if !strings.Contains(c, "Content Security Policy") {
			t.Errorf("the console says %q", c)
		}
	}
}
