package walks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// scene is what docs/page.png shows: eight devices and four users.
const scene = `
root# mkdir -p /etc/lgpu && printf 'place.memory.max = 72GiB\nplace.compute.max = 50%%\n' > /etc/lgpu/lgpud.conf
root# (lgpu daemon --page 127.0.0.1:8080 > /var/lib/lgpud.log 2>&1 &)
root# lgpu daemon status --wait 60s
root# lgpu create $SHAPE /vision memory.max=60GiB && lgpu chown carol:vision /vision
root# lgpu create /voice compute.max=60% && lgpu chown bob /voice
carol$ (lgpu run $SHAPE --device 0 --group /vision --name train --memory 40GiB --weight 300 -- serve 36000 &> /dev/null &)
dave$ (lgpu run $SHAPE --device 0 --group /vision --name eval --memory 16GiB --compute 25 -- serve 11000 &> /dev/null &)
bob$ (lgpu run $SHAPE --device 1 --group /voice --name live --memory 20GiB --compute 40 -- serve 17000 &> /dev/null &)
bob$ (lgpu run $SHAPE --device 1 --group /voice --name night-batch --memory 30GiB --weight 50 -- serve 8600 &> /dev/null &)
alice$ (lgpu run $SHAPE --device 2 --name notebook --memory 10GiB --compute 40 -- serve 900 &> /dev/null &)
alice$ (lgpu run $SHAPE --device 3,4 --name finetune -- hold 57000 &> /dev/null &)
bob$ (lgpu run $SHAPE --device 5 --name scratch --memory 20GiB -- hold 4800 &> /dev/null &)
carol$ (lgpu run $SHAPE --device 6 --name embeddings --memory 48GiB -- hold 45000 &> /dev/null &)
`

// hold takes so many MiB and computes nothing.
const hold = "#!/bin/sh\nsleep 1000 | /usr/local/share/tenant /usr/local/share/compute.ptx \"$1\"\n"

// TestPicture takes docs/page.png, with UPDATE=1.
func TestPicture(t *testing.T) {
	if os.Getenv("UPDATE") == "" || os.Getuid() != 0 {
		t.Skip("it takes a picture, as root with UPDATE=1")
	}
	onMachine(t, "TestPictureOnMachine", "LGPU_PICTURE=1")
}

// TestPictureOnMachine is TestPicture on its machine.
func TestPictureOnMachine(t *testing.T) {
	if os.Getenv("LGPU_PICTURE") == "" {
		t.Skip("TestPicture starts it")
	}
	furnish(t)
	if err := os.WriteFile("/usr/local/bin/hold", []byte(hold), 0o755); err != nil {
		t.Fatal(err)
	}
	shells := map[string]*shell{}
	do := func(user, command string) string {
		if shells[user] == nil {
			shells[user] = login(t, user)
			shells[user].run(t, Step{Command: "export SHAPE=--sim=8x80GiB,sms=4 LGPU_SOCKET_API=/run/lgpu/lgpud.sock"})
		}
		out, status := shells[user].run(t, Step{Command: command})
		if status != 0 {
			t.Fatalf("%s: %s: %s", user, command, out)
		}
		return strings.Join(out, "\n")
	}
	for _, line := range strings.Split(strings.TrimSpace(scene), "\n") {
		user, command, _ := strings.Cut(line, " ")
		do(strings.Trim(user, "#$"), command)
	}
	do("root", `until test "$(lgpu ps | grep -c 'GPU-.* [0-9][0-9]*$')" -ge 9; do sleep 0.2; done; sleep 20`)
	path, err := filepath.Abs("../../docs/page.png")
	if err != nil {
		t.Fatal(err)
	}
	allocator, cancel := chromedp.NewExecAllocator(t.Context(), chromedp.ExecPath("/usr/bin/chromium"), chromedp.UserDataDir(t.TempDir()),
		chromedp.NoFirstRun, chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.WindowSize(1366, 1140))
	defer cancel()
	tab, end := chromedp.NewContext(allocator)
	defer end()
	if err := chromedp.Do(tab, chromedp.Navigate(do("root", "lgpu page")), chromedp.WaitVisible(chromedp.CSS("#nodes tr"))); err != nil {
		t.Fatal(err)
	}
	opens := `document.querySelectorAll("#nodes [aria-expanded=false]").forEach(b => b.click())`
	if _, err := chromedp.Run(tab, chromedp.Evaluate[any](opens+", 0")); err != nil {
		t.Fatal(err)
	}
	do("root", "sleep 3")
	picture, err := chromedp.Run(tab, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(path, picture, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Log(do("root", "lgpu ps"))
}
