{{- define "lgpu.labels" -}}
app.kubernetes.io/name: lgpu
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "lgpu.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- /* What asks the daemon, by the node's own view of its socket. */ -}}
{{- define "lgpu.ready" -}}
exec: {command: [/usr/bin/lgpu-kube, ready, --socket=/proc/1/root/run/lgpu/lgpud.sock]}
timeoutSeconds: 10
{{- end }}
