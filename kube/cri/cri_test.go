package cri

import (
	"strings"
	"testing"
)

func TestReads(t *testing.T) {
	for version, want := range map[string]string{
		"containerd://2.4.2":           "",
		"containerd://v2.0.0-rc.1":     "",
		"containerd://10.0":            "",
		"containerd://1.6.20~ds1":      "1.6.20~ds1, ignores CDI",
		"containerd://1.7.12-0ubuntu4": "only where enable_cdi is set",
		"containerd://0.9":             "ignores CDI",
		"cri-o://1.30.3":               "",
		"cri-o://1.22.0":               "CRI-O 1.23",
		"docker://27.1.1":              "not known",
		"containerd://":                "not known",
		"containerd://x.y":             "not known",
		"containerd://2.":              "not known",
		"":                             "not known",
		strings.Repeat("x", 1<<16):     "not known",
	} {
		err := Reads(version)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || len(err.Error()) > 400) {
			t.Errorf("%.40s: %v", version, err)
		}
	}
}
