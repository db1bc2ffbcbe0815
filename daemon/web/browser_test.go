package web

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/internal/users"
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
	b.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(b.url), chromedp.WaitVisible(chromedp.CSS("#nodes tr")))
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
	bounded, stop := context.WithTimeout(tab, 2*time.Minute)
	t.Cleanup(stop)
	return bounded
}

// short makes expressions short.
const short = "one = s => document.querySelector(s); all = s => document.querySelectorAll(s); "

// follow goes to an address within the page and waits for what it shows.
func (b *browser) follow(hash, shown string) {
	b.t.Helper()
	eval[string](b, fmt.Sprintf("location.hash = %q", hash))
	b.do(chromedp.WaitVisible(chromedp.CSS(shown)))
}

// expect compares expressions in the page with what they should be.
func (b *browser) expect(want map[string]string) {
	b.t.Helper()
	for what, want := range want {
		if got := eval[string](b, short+what); got != want {
			b.t.Errorf("%s is %q, want %q", what, got, want)
		}
	}
}

// TestPage looks at what the page shows of a machine, and at what it does when that changes.
func TestPage(t *testing.T) {
	b := show(t, newFake(), true)
	if hash := eval[string](b, "location.href"); strings.Contains(hash, "token") {
		t.Errorf("the token stays in the address: %s", hash)
	}
	people := []string{users.Name(1000), users.Name(1001), users.Name(1002)}
	slices.Sort(people)
	b.expect(map[string]string{
		"one('#summary').textContent":                                      "2 devices, 5 lgpus, 5 processes",
		"String(all('#devices tr').length)":                                "2",
		"one('#devices .device').textContent":                              "0NVIDIA H200",
		"one('#devices [data-label=\"Memory\"] .figure').textContent":      "76 GiB / 141 GiB",
		"one('#devices .power').textContent":                               "351 W",
		"one('#devices .heat').textContent":                                "64 °C",
		"one('#devices .lgpus .figure').textContent":                       "4",
		"one('#devices .lgpus').title":                                     "/vision/eval\n/vision/train\n/voice/live\n/voice/night-batch",
		"one('#devices .users').textContent":                               strings.Join(people, ", "),
		"[...all('#nodes .node a')].map(e => e.textContent)+''":            "/,python-4712,vision,voice",
		"one('#nodes tr:nth-child(3) .memory').textContent":                "63 GiB / 96 GiB",
		"one('#nodes tr:nth-child(3) [data-label=State]').textContent":     "2 lgpus",
		"one('#nodes tr:nth-child(3) [data-label=Processes]').textContent": "3",
		"one('#events li').textContent.includes('compute.min')+''":         "true",
		"one('#devices .stack').getAttribute('aria-label').slice(0, 5)":    "Time:",
		"(one('[data-label=Memory] .stack i:nth-child(2)').offsetWidth / one('[data-label=Memory] .stack').offsetWidth).toFixed(1)": "0.3",
	})
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
	b.until("document.querySelectorAll('#devices tr').length === 1 && document.querySelectorAll('#nodes tr').length === 1")
	if got := eval[string](b, "document.querySelector('#devices .note-old').textContent"); got != "out of order" {
		t.Errorf("fault: %q", got)
	}
	b.fake.touch(func(s *daemon.Snapshot) { s.Devices, s.Directories = nil, nil })
	b.until(short + "one('#no-devices').textContent.startsWith('No devices') && one('#tree').hidden")
	b.fake.touch(nil)
	b.until("document.querySelectorAll('#devices tr').length === 2 && document.querySelector('#no-devices').hidden")

	hosts := eval[[]string](b, "[...new Set(performance.getEntriesByType('resource').map(r => new URL(r.name).host))]")
	if len(hosts) != 1 {
		t.Errorf("resources come from %q", hosts)
	}
	if c := b.complaints(); len(c) > 0 {
		t.Errorf("the console says %q", c)
	}
}

// TestSixteen: on a small laptop's screen sixteen devices are seen without scrolling, and nothing stands out at its side.
func TestSixteen(t *testing.T) {
	f := newFake()
	f.touch(func(s *daemon.Snapshot) { many(s, 16) })
	b := show(t, f, true)
	b.do(chromedp.EmulateViewport(1366, 768))
	b.until("document.querySelectorAll('#devices tr').length === 16")
	b.picture("sixteen.png")
	bottom := eval[float64](b, "[...document.querySelectorAll('#devices tr')].at(-1).getBoundingClientRect().bottom + scrollY")
	if bottom > 768 {
		t.Errorf("the last device ends at %.0f of 768 pixels", bottom)
	}
	if n := eval[int](b, "document.querySelectorAll('#nodes tr').length"); n != 17 {
		t.Errorf("%d lines in the tree; the root and sixteen closed groups are 17", n)
	}
	if wide := eval[int](b, "document.documentElement.scrollWidth"); wide > 1366 {
		t.Errorf("%d pixels wide", wide)
	}
}

// TestDevice looks at one device: by a click on its line, with its lgpus, processes and charts.
func TestDevice(t *testing.T) {
	b := show(t, newFake(), true)
	b.click("#devices tr .power")
	b.do(chromedp.WaitVisible(chromedp.CSS(".card")))
	if hash := eval[string](b, "decodeURIComponent(location.hash)"); hash != "#/device/"+identity(first) {
		t.Errorf("the address is %s", hash)
	}
	b.expect(map[string]string{
		"one('.card h2').textContent":                                                                   "0NVIDIA H200",
		"one('.card .chip').textContent":                                                                "195:0",
		"one('.card .card-title').textContent.includes('1.25 kWh')+''":                                  "true",
		"one('.card .legend li:nth-child(2) .path').textContent":                                        "/vision/train",
		"one('.card .legend li:last-child .path').textContent.slice(0, 29)":                             "without an lgpu: blender (99)",
		"one('.card .stack').getAttribute('aria-label').slice(0, 29)":                                   "Memory: /vision/eval 15 GiB, ",
		"(one('.card .stack i:nth-child(2)').offsetWidth / one('.card .stack').offsetWidth).toFixed(2)": "0.34",
		"[...all('.processes tbody tr:first-child td')].map(e => e.textContent)+''":                     "812," + users.Name(1000) + ",python,46 GiB,/vision/train",
		"[...all('#nodes .node a')].map(e => e.textContent)+''":                                         "/,vision,voice",
		"one('#overview').hidden+''":                                                                    "true",
	})
	b.click(`.toggle[aria-label="Open /vision"]`)
	b.click(`.toggle[aria-label="Open /voice"]`)
	b.expect(map[string]string{
		"[...all('#nodes .node a')].map(e => e.textContent)+''":                        "/,vision,eval,train,voice,live,night-batch",
		"one('[data-path=\"/vision/eval\"] .memory').textContent":                      "15 GiB / 16 GiB",
		"one('[data-path=\"/vision/eval\"] [data-label=\"compute.max\"]').textContent": "25 %",
		"one('[data-path=\"/vision/train\"] .drawn').textContent":                      "200 W",
		"one('[data-path=\"/voice/live\"] [data-label=\"lgpu.weight\"]').textContent":  "100 latency",
		"one('[data-path=\"/voice/live\"] [data-label=\"compute.min\"]').textContent":  "10 %",
	})
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
	b.picture("device.png")
	b.fake.touch(func(s *daemon.Snapshot) { s.Devices[0].Fault = "fell off the bus" })
	b.until("document.querySelector('.card .fault').textContent === 'Out of order: fell off the bus'")
	b.fake.touch(func(s *daemon.Snapshot) { s.Devices = s.Devices[1:] })
	b.until("document.querySelector('#missing').textContent.startsWith('There is no device GPU-')")
}

// TestEdit changes limits with the form, and is refused.
func TestEdit(t *testing.T) {
	b := show(t, newFake(), true)
	b.click(`.toggle[aria-label="Open /vision"]`)
	b.click(`button[aria-label="Edit limits of /vision/eval"]`)
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

	b.click(`button[aria-label="Edit limits of /vision/eval"]`)
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

// TestAnotherDaemon: while no daemon answers, what is shown looks old. The next one may have another token, which the
// page can be given.
func TestAnotherDaemon(t *testing.T) {
	b := show(t, newFake(), true)
	edit := "document.querySelector('td.act').offsetWidth > 0"
	b.until(edit + " && !document.body.classList.contains('stale')")
	address := eval[string](b, "location.host")
	b.stop()
	b.until("document.body.classList.contains('stale')")
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
	for _, width := range []int64{320, 390, 700, 1000, 1280} {
		b.do(chromedp.EmulateViewport(width, 844, chromedp.EmulateMobile), chromedp.Navigate("about:blank"),
			chromedp.Navigate(b.url),
			chromedp.WaitVisible(chromedp.CSS("#nodes tr")))
		b.follow("#/device/0", ".card")
		b.noWider(width)
		for _, view := range [][2]string{{"#/lgpu/vision", ".uses"}, {"#/", "#devices tr"}} {
			b.follow(view[0], view[1])
			b.noWider(width)
		}
		if width == 390 {
			b.picture("phone.png")
		}
	}
}

// noWider looks for elements that are wider than the screen.
func (b *browser) noWider(width int64) {
	b.t.Helper()
	wide := eval[[]string](b, `[...document.querySelectorAll("body *")]
		.filter(e => !e.closest(".hidden, .skip, thead, dialog"))
		.filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
		.map(e => e.tagName + "." + e.className)`)
	wide = append(wide, eval[[]string](b, `[...document.querySelectorAll("main section:not([hidden])")]
		.filter(e => e.scrollWidth > e.clientWidth).map(e => e.id + " scrolls")`)...)
	if len(wide) > 0 {
		b.t.Errorf("at %d, %s: wider than the screen: %q", width, eval[string](b, "location.hash"), wide)
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
	owned := "window.owned === 1 || document.querySelector('img[src=x], main script') !== null"
	views := [][2]string{{"#/", "#devices tr"}, {"#/lgpu/" + url.PathEscape(evil), ".uses"}, {"#/lgpu/" + url.PathEscape(evil+"2"), "#missing"},
		{"#/device/" + url.PathEscape(evil), "#missing"}, {"#/device/%ff", "#devices tr"}, {"#/device/0", ".card"}}
	for _, view := range views {
		b.follow(view[0], view[1])
		if eval[bool](b, owned) {
			t.Errorf("at %s a name became part of the page", view[0])
		}
	}
	b.click(`button[aria-label^="Edit limits of /"]`)
	if eval[bool](b, owned) {
		t.Error("a name became part of the editor")
	}
	if !eval[bool](b, "document.querySelector('.card .fault').textContent.includes('<img src=x')") {
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
