"""Kafka's wire protocol: conversion between bytes and messages. No I/O."""
