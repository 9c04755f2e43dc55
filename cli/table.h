// What a terminal table is made of.
#pragma once

#include <cstdio>
#include <string>

namespace tilewise::cli {

// printf into a string.
template <class... Args>
std::string format(const char* pattern, Args... args) {
  const int n = std::snprintf(nullptr, 0, pattern, args...);
  std::string text(size_t(n > 0 ? n : 0), '\0');
  std::snprintf(text.data(), text.size() + 1, pattern, args...);
  return text;
}

// A bar of `width` cells that is full at 1, in eighths of a cell.
inline std::string bar(double share, int width) {
  static const char* const kParts[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double clipped = share < 0 ? 0 : share > 1 ? 1 : share;
  const int eighths = int(clipped * width * 8 + 0.5);
  std::string text;
  for (int i = 0; i < width; ++i) {
    const int part = eighths - 8 * i;
    text += part >= 8 ? "█" : part > 0 ? kParts[part] : " ";
  }
  return text;
}

// 12.3 ms, 456 us, 1.20 s.
inline std::string time_text(double seconds) {
  if (seconds < 1e-3) return format("%.1f us", seconds * 1e6);
  if (seconds < 1) return format("%.2f ms", seconds * 1e3);
  return format("%.2f s", seconds);
}

inline std::string bytes_text(double bytes) {
  if (bytes < 1 << 20) return format("%.0f KB", bytes / (1 << 10));
  if (bytes < 1 << 30) return format("%.0f MB", bytes / (1 << 20));
  return format("%.1f GB", bytes / (1 << 30));
}

}  // namespace tilewise::cli
