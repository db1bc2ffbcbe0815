package test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// Many small tenants of one device: each goes on, and all that shows them shows all of them. How long that takes with 200,
// bench/many.py measures.
func TestMany(t *testing.T) {
	const tenants = 24
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	p := newPlace(t)
	p.serve("--mount", "off", "--metrics", address)
	var names []string
	for n := range tenants {
		name := fmt.Sprintf("small-%02d", n)
		c := p.start("lgpu", "run", "--sim=1x16GiB,sms=2", "--name", name, "--memory", "256MiB", "--compute", "1", "--", "obey", control)
		c.until("ready")
		if _, err := fmt.Fprintln(c.in, "launch 100000000 100"); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	p.goOn(2, names...)
	r, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	metrics, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	ps, top := p.must("ps"), p.must("top", "--once")
	for _, name := range names {
		if !strings.Contains(ps, "\n"+name+" ") || !strings.Contains(top, " "+name+" ") ||
			!strings.Contains(string(metrics), `lgpu_clients{kind="lgpu",path="/`+name+`"} 1`) {
			t.Errorf("%s is not shown by all of ps, top and metrics", name)
		}
	}
}
