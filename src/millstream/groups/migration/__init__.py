"""Groups between the two protocols: conversion of live groups, classic requests to consumer groups (KIP-848)."""
