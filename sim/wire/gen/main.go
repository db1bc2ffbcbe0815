// Gen writes both ends of the protocol of package wire from tenant/abi/cuda.tsv and calls.txt: the Go interfaces with their
// decoders, and the C stubs and exports of sim/client. Run by "go generate ./sim/wire".
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sim/wire/gen:", err)
		os.Exit(1)
	}
}

func run() error {
	types, err := readTypes("../../tenant/abi/include")
	if err != nil {
		return err
	}
	plan, err := readCalls("calls.txt", types)
	if err != nil {
		return err
	}
	client := filepath.Join("..", "client")
	nvmlSource, nvmlVersions, err := nvmlExports(client)
	if err != nil {
		return err
	}
	for _, out := range []struct {
		path string
		text []byte
	}{
		{"enums_gen.go", goEnums(types)},
		{"calls_gen.go", goCalls(plan)},
		{filepath.Join(client, "rpc_gen.h"), cHeader(plan)},
		{filepath.Join(client, "rpc_gen.c"), cStubs(plan, false)},
		{filepath.Join(client, "rpc_nvml_gen.c"), cStubs(plan, true)},
		{filepath.Join(client, "hand_gen.h"), cHand(plan)},
		{filepath.Join(client, "exports_gen.c"), cExports(plan)},
		{filepath.Join(client, "tables_gen.c"), cTables(plan, types)},
		{filepath.Join(client, "nvml_exports_gen.c"), nvmlSource},
		{filepath.Join(client, "libnvidia-ml.map"), nvmlVersions},
		{filepath.Join(client, "libcuda.map"), cMap(plan)},
	} {
		if err := os.WriteFile(out.path, out.text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
