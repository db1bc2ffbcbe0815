package wire

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestLayouts asks the C compiler where each member of each structure lies: the Go types must say the same.
func TestLayouts(t *testing.T) {
	types := map[string]any{
		"CUuuid": CUuuid{}, "CUipcMemHandle": CUipcMemHandle{}, "CUipcEventHandle": CUipcEventHandle{},
		"CUmemPoolPtrExportData": CUmemPoolPtrExportData{}, "CUlaunchAttribute": CUlaunchAttribute{},
		"CUstreamAttrValue": CUstreamAttrValue{}, "CUkernelNodeAttrValue": CUkernelNodeAttrValue{},
		"CUDA_MEMCPY2D": CUDA_MEMCPY2D{}, "CUDA_MEMCPY3D": CUDA_MEMCPY3D{}, "CUDA_MEMCPY3D_PEER": CUDA_MEMCPY3D_PEER{},
		"CUDA_ARRAY3D_DESCRIPTOR": CUDA_ARRAY3D_DESCRIPTOR{}, "CUDA_ARRAY_MEMORY_REQUIREMENTS": CUDA_ARRAY_MEMORY_REQUIREMENTS{},
		"CUmemLocation": CUmemLocation{}, "CUcheckpointGpuPair": CUcheckpointGpuPair{}, "CUmemAllocationProp": CUmemAllocationProp{}, "CUmemAccessDesc": CUmemAccessDesc{},
		"CUmemPoolProps": CUmemPoolProps{}, "CUDA_MEMSET_NODE_PARAMS": CUDA_MEMSET_NODE_PARAMS{},
		"CUDA_HOST_NODE_PARAMS": CUDA_HOST_NODE_PARAMS{}, "CUgraphEdgeData": CUgraphEdgeData{},
		"CUgraphExecUpdateResultInfo": CUgraphExecUpdateResultInfo{}, "CUstreamBatchMemOpParams": CUstreamBatchMemOpParams{},
		"lgpusim_launch": Launch{}, "lgpusim_kernel_node": KernelNode{}, "lgpusim_param": Param{},
		"lgpusim_device": Device{}, "lgpusim_process": Process{}, "lgpusim_turn": Turn{},
	}
	// Members whose C names are not the Go ones with a small first letter.
	names := map[string]string{
		"CUmemAllocationProp.CompressionType": "allocFlags.compressionType", "CUmemAllocationProp.Usage": "allocFlags.usage",
		"CUmemAllocationProp.GpuDirectRDMACapable": "allocFlags.gpuDirectRDMACapable",
		"CUmemAllocationProp.Reserved":             "allocFlags.reserved",
		"CUgraphEdgeData.FromPort":                 "from_port", "CUgraphEdgeData.ToPort": "to_port",
		"CUstreamBatchMemOpParams.FlushFlags": "flushRemoteWrites.flags", "CUstreamBatchMemOpParams.Address": "waitValue.address",
		"CUstreamBatchMemOpParams.Value": "waitValue.value64", "CUstreamBatchMemOpParams.Flags": "waitValue.flags",
		"CUstreamBatchMemOpParams.Alias": "waitValue.alias", "lgpusim_device.UUID": "uuid", "lgpusim_device.PCIDomain": "pciDomain",
		"lgpusim_device.PCIBus": "pciBus", "lgpusim_device.PCIDevice": "pciDevice", "lgpusim_device.PCIDeviceID": "pciDeviceId",
		"lgpusim_device.GPUInstance": "gpuInstance",
		"lgpusim_device.CCMajor":     "ccMajor", "lgpusim_device.CCMinor": "ccMinor", "lgpusim_device.UtilizationGPU": "utilizationGpu",
		"lgpusim_process.PID": "pid", "lgpusim_process.UtilizationGPU": "utilizationGpu",
		"lgpusim_turn.PID": "pid",
	}
	capital := map[string]bool{"WidthInBytes": true, "Height": true, "Depth": true, "Width": true, "Format": true, "NumChannels": true, "Flags": true}
	var program strings.Builder
	program.WriteString("#include <stdio.h>\n#include <stddef.h>\n#include \"proto.h\"\nint main(void)\n{\n")
	var want []string
	for c, v := range types {
		typ := reflect.TypeOf(v)
		fmt.Fprintf(&program, "\tprintf(\"%s %%zu\\n\", sizeof(%s));\n", c, c)
		want = append(want, fmt.Sprintf("%s %d", c, typ.Size()))
		if typ.Kind() != reflect.Struct {
			continue
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			if f.Name == "_" {
				continue
			}
			member, ok := names[c+"."+f.Name]
			if !ok {
				member = strings.ToLower(f.Name[:1]) + f.Name[1:]
				if strings.HasPrefix(c, "CUDA_M") && capital[f.Name] && f.Name != "Flags" && !strings.HasPrefix(c, "CUDA_MEMSET") || strings.HasPrefix(c, "CUDA_ARRAY3D") {
					member = f.Name
				}
			}
			fmt.Fprintf(&program, "\tprintf(\"%s.%s %%zu %%zu\\n\", offsetof(%s, %s), sizeof(((%s *)0)->%s));\n", c, f.Name, c, member, c, member)
			want = append(want, fmt.Sprintf("%s.%s %d %d", c, f.Name, f.Offset, f.Type.Size()))
		}
	}
	program.WriteString("\treturn 0;\n}\n")
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	if err := os.WriteFile(source, []byte(program.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if out, err := exec.Command(cc, "-std=c11", "-I", "../client", "-I", "../../tenant/abi/include", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(string(bytes.TrimSpace(out)), "\n")
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("C has %q, Go has %q", got[i], want[i])
		}
	}
}
