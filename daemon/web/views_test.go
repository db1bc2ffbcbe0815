package web

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/internal/users"
)

// colours lists each text of the page that can be seen with what is behind it: their contrast by WCAG 2, worst first.
// Colours are mixed as they lie on each other, and asked of a canvas, which knows every way to write one.
const colours = `(() => {
	const canvas = document.createElement("canvas"), c = canvas.getContext("2d", { willReadFrequently: true });
	canvas.width = canvas.height = 1;
	const over = (layers) => {
		c.clearRect(0, 0, 1, 1);
		for (const l of layers) { c.fillStyle = l; c.fillRect(0, 0, 1, 1); }
		return [...c.getImageData(0, 0, 1, 1).data].slice(0, 3);
	};
	const luminance = (rgb) => rgb.map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
		.reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
	const out = [];
	const look = (e, style) => {
		const layers = [];
		let faded = 1;
		for (let up = e; up; up = up.parentElement) {
			const s = getComputedStyle(up);
			faded *= Number(s.opacity);
			layers.unshift(s.backgroundColor);
			const hatch = /^repeating-linear-gradient\(-45deg, (rgba?\([^)]*\)|color\([^)]*\)) /.exec(s.backgroundImage);
			if (hatch) layers.splice(1, 0, hatch[1]);
		}
		layers.unshift("white");
		const back = over(layers), front = over([...layers, style.color]);
		const [x, y] = [luminance(back), luminance(front)];
		const ratio = faded < 1 ? 0 : (Math.max(x, y) + .05) / (Math.min(x, y) + .05); // what is faded cannot be measured so
		out.push([ratio, e.tagName + "." + e.className + " in " + (e.parentElement?.className || "")]);
	};
	for (const e of document.querySelectorAll("body *")) {
		if (!e.checkVisibility({ visibilityProperty: true }) || e.closest(".hidden, .skip, noscript")) continue;
		if ([...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) look(e, getComputedStyle(e));
		if (e.matches("input")) { look(e, getComputedStyle(e)); look(e, getComputedStyle(e, "::placeholder")); }
	}
	out.sort((a, b) => a[0] - b[0]);
	return JSON.stringify(out);
})()`

// readable checks that all text that is seen can be read.
func (b *browser) readable(where string) {
	b.t.Helper()
	var all [][2]any
	if err := json.Unmarshal([]byte(eval[string](b, colours)), &all); err != nil {
		b.t.Fatal(err)
	}
	if len(all) < 20 {
		b.t.Fatalf("%s: only %d texts were found", where, len(all))
	}
	for _, text := range all[:min(len(all), 5)] {
		if ratio, _ := text[0].(float64); ratio < 4.5 {
			b.t.Errorf("%s: %v has a contrast of %.2f", where, text[1], ratio)
		}
	}
}

// TestReadable: in both themes every text of every view has a contrast of 4.5 to 1, also what is old or out of order.
func TestReadable(t *testing.T) {
	f := newFake()
	b := show(t, f, true)
	f.touch(func(s *daemon.Snapshot) {
		s.Devices[1].Fault, s.Devices[1].Sampled = "lost", s.At.Add(-time.Minute)
	})
	b.until("document.querySelector('tr.old.broken') !== null")
	b.click(`.toggle[aria-label="Open /vision"]`)
	b.click(`.toggle[aria-label="Open /voice"]`)
	views := [][2]string{{"#/", "#devices tr"}, {"#/device/0", ".card"}, {"#/device/1", ".card.old"}, {"#/lgpu/vision/eval", ".uses"},
		{"#/lgpu/gone", "#missing"}}
	for _, theme := range []string{"light", "dark"} {
		eval[string](b, fmt.Sprintf("document.documentElement.dataset.theme = %q", theme))
		for _, view := range views {
			b.follow(view[0], view[1])
			b.readable(theme + " " + view[0])
		}
		b.follow("#/", "#devices tr")
		b.click(`button[aria-label="Edit limits of /vision/eval"]`)
		b.do(chromedp.WaitVisible(chromedp.CSS("#editor")))
		b.readable(theme + " editor")
		b.click("#editor [value=cancel]")
	}
	b.stop()
	b.until("document.body.classList.contains('stale')")
	for _, theme := range []string{"light", "dark"} {
		eval[string](b, fmt.Sprintf("document.documentElement.dataset.theme = %q", theme))
		for _, view := range views {
			b.follow(view[0], view[1])
			b.readable(theme + " stale " + view[0])
		}
	}
	b.picture("stale.png")
}

// TestStale: three seconds after the last news from the daemon its figures look old and say how old they are.
func TestStale(t *testing.T) {
	b := show(t, newFake(), true)
	look := `(s => s.color + s.fontStyle)(getComputedStyle(document.querySelector("#devices .power")))`
	fresh := eval[string](b, look)
	if !eval[bool](b, "document.getElementById('banner').hidden && document.getElementById('live').textContent === 'live'") {
		t.Error("a page with news says that it has none")
	}
	b.stop()
	b.until("!document.getElementById('banner').hidden")
	b.expect(map[string]string{
		"/^The daemon does not answer. What is shown is of \\d+:\\d+:\\d+, \\d+ s ago$/.test(one('#banner').textContent)+''": "true",
		"/^no news, \\d+ s ago$/.test(one('#live').textContent)+''":                                                          "true",
		"getComputedStyle(one('#devices .stack')).filter":                                                                    "grayscale(1)",
		"getComputedStyle(one('#overview')).backgroundImage.startsWith('repeating')+''":                                      "true",
	})
	if eval[string](b, look) == fresh {
		t.Error("a figure looks as it did when it was fresh")
	}
}

// TestOldDevice: a device whose driver does not answer has old figures, while those beside it are fresh.
func TestOldDevice(t *testing.T) {
	f := newFake()
	b := show(t, f, true)
	if eval[int](b, "document.querySelectorAll('tr.old').length") != 0 {
		t.Error("fresh figures look old")
	}
	f.touch(func(s *daemon.Snapshot) { s.Devices[0].Sampled = s.At.Add(-42 * time.Second) })
	b.until("document.querySelector('#devices tr:first-child .note-old').textContent === '42 s ago'")
	if eval[int](b, "document.querySelectorAll('tr.old').length") != 1 {
		t.Error("the other device looks old too")
	}
	b.follow("#/device/0", ".card.old")
	b.until("document.querySelector('.card').textContent.includes('last answered 42 s ago')")
}

// TestSuspended: what is suspended says so, with how much of its memory has left the device, and why not all.
func TestSuspended(t *testing.T) {
	f := newFake()
	b := show(t, f, true)
	resident, evicted := uint64(3<<30), uint64(12<<30)
	f.touch(func(s *daemon.Snapshot) {
		for i := range s.Directories {
			n := &s.Directories[i]
			if n.Path != "/vision/eval" {
				continue
			}
			d := &n.Devices[0]
			n.Overcommit, n.Suspend, n.State, d.State = true, true, daemon.StateSuspending, daemon.StateSuspending
			d.Resident, d.Evicted, d.ResidenceFailure = &resident, &evicted, "a kernel does not end"
		}
	})
	b.click(`.toggle[aria-label="Open /vision"]`)
	const row = `document.querySelector('tr[data-path="/vision/eval"] `
	b.until(row + `.state.suspending')?.textContent === "suspending"`)
	if title := eval[string](b, row+`td.memory').title`); title != "3 GiB on the device, 12 GiB evicted" {
		t.Errorf("the memory's title is %q", title)
	}
	if part := eval[float64](b, `(() => { const [on, off] = `+row+`.mini').children; return off.offsetWidth / (on.offsetWidth + off.offsetWidth); })()`); part < .7 || part > .9 {
		t.Errorf("%.2f of the bar is said to be evicted, want 0.8", part)
	}
	b.readable("suspended")
	b.follow("#/lgpu/vision/eval", "table.uses")
	b.until(`document.querySelector('article .fault:not([hidden])')?.textContent.endsWith(": a kernel does not end")`)
	b.until(`document.querySelector('table.uses tbody').textContent.includes("15 GiB (12 GiB evicted) / 16 GiB")`)
}

// TestFilter finds lgpus by name, user, command and device, opens the groups that they are in, and leaves out the rest.
func TestFilter(t *testing.T) {
	b := show(t, newFake(), true)
	tree := "[...document.querySelectorAll('#nodes .node a')].map(e => e.textContent)+''"
	devices := "[...document.querySelectorAll('#devices .index')].map(e => e.textContent)+''"
	for _, test := range []struct{ filter, tree, devices string }{
		{"EVAL", "/,vision,eval", "0"}, {users.Name(1002), "/,voice,live", "0"}, {"dataloader", "/,vision,train", "0"},
		{"software", "/,python-4712", "1"}, {"vision python", "/,vision,eval,train", "0"}, {"blender", "", "0"}, {"h200 live", "/,voice,live", "0"},
		{"nothing at all", "", ""}, {"", "/,python-4712,vision,voice", "0,1"},
	} {
		eval[string](b, fmt.Sprintf("(f => { f.value = %q; f.oninput(); return ''; })(document.getElementById('filter'))", test.filter))
		if got := eval[string](b, tree); got != test.tree {
			t.Errorf("%q leaves %s, want %s", test.filter, got, test.tree)
		}
		if got := eval[string](b, devices); got != test.devices {
			t.Errorf("%q leaves the devices %s, want %s", test.filter, got, test.devices)
		}
	}
}

// TestKeyboard goes through the page without a pointer.
func TestKeyboard(t *testing.T) {
	b := show(t, newFake(), true)
	focus := "document.activeElement.textContent"
	b.do(chromedp.KeyEvent("/"))
	b.until("document.activeElement.id === 'filter'")
	b.do(chromedp.KeyEvent("eval"))
	b.until("document.querySelectorAll('#nodes tr').length === 3")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until("document.querySelectorAll('#nodes tr').length === 4 && document.activeElement === document.body")
	for _, want := range []string{"0NVIDIA H200", "1Software GPU", "/", "python-4712", "vision"} {
		b.do(chromedp.KeyEvent(kb.ArrowDown))
		if got := eval[string](b, focus); got != want {
			t.Fatalf("the focus is on %q, want %q", got, want)
		}
	}
	b.do(chromedp.KeyEvent(kb.ArrowRight))
	b.until("document.querySelectorAll('#nodes tr').length === 6")
	b.do(chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.Enter))
	b.do(chromedp.WaitVisible(chromedp.CSS(".uses")))
	b.expect(map[string]string{"location.hash": "#/lgpu/vision/eval", "document.activeElement.textContent": "/vision/eval"})
	b.do(chromedp.KeyEvent(kb.Escape), chromedp.WaitVisible(chromedp.CSS("#devices tr")))
	b.do(chromedp.Focus(chromedp.CSS(`.toggle[aria-label="Close /vision"]`)), chromedp.KeyEvent(kb.ArrowLeft))
	b.until("document.querySelectorAll('#nodes tr').length === 4")
}

// TestLinks: an address leads to what it names, also when the page is opened with it.
func TestLinks(t *testing.T) {
	b := show(t, newFake(), false)
	for hash, heading := range map[string]string{
		"#/device/1": "1Software GPU", "#/device/" + identity(first): "0NVIDIA H200", "#/lgpu/vision/train": "/vision/train",
		"#/lgpu/vision": "/vision", "#/lgpu/": "/",
	} {
		b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(b.url+hash), chromedp.WaitVisible(chromedp.CSS(".card")))
		if got := eval[string](b, "document.querySelector('.card h2').textContent"); got != heading {
			t.Errorf("%s shows %q, want %q", hash, got, heading)
		}
	}
	b.click("#trail a")
	b.do(chromedp.WaitVisible(chromedp.CSS("#devices tr")))
}
