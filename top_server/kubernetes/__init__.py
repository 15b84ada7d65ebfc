"""Manifests with which a Kubernetes cluster runs a top server and its nodes."""
