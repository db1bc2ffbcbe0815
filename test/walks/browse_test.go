package walks

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// browse is a command that prints what a browser shows at an address once devices are there. It is this test's own
// program: a browser by itself prints a page as soon as it has loaded, before anything has filled it.
func browse(self string) string {
	return fmt.Sprintf("#!/bin/sh\nLGPU_BROWSE=\"$1\" exec %s -test.run='^TestBrowse$'\n", self)
}

// TestBrowse is browse.
func TestBrowse(t *testing.T) {
	address := os.Getenv("LGPU_BROWSE")
	if address == "" {
		t.Skip("it is for TestWalks")
	}
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal(err)
	}
	allocator, cancel := chromedp.NewExecAllocator(t.Context(), chromedp.ExecPath(path), chromedp.UserDataDir(filepath.Join(t.TempDir(), "profile")),
		chromedp.NoFirstRun, chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-dev-shm-usage", true))
	defer cancel()
	tab, end := chromedp.NewContext(allocator)
	defer end()
	if err := chromedp.Do(tab, chromedp.Navigate(address), chromedp.WaitVisible(chromedp.CSS("#nodes tr"))); err != nil {
		t.Fatal(err)
	}
	page, err := chromedp.Run(tab, chromedp.Evaluate[string]("document.documentElement.outerHTML"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(page)
}
