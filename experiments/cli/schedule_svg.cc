// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/schedule_svg.h"

#include <algorithm>
#include <array>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

namespace droptest::cli {
namespace {

using nlohmann::json;

constexpr double kLeft = 70;
constexpr double kTop = 40;
constexpr double kWidth = 1000;
constexpr double kLine = 34;
constexpr double kBox = 28;

struct KindOfBox {
  char kind;
  std::string_view name;
  std::array<std::string_view, 2> colours;  ///< colours of the first chunk, and of later ones
};
constexpr std::array<KindOfBox, 4> kKinds = {{
    {'F', "forward", {"#9ec1e6", "#4c78a8"}},
    {'B', "backward", {"#f7c58f", "#d9762b"}},
    {'I', "gradient of the input", {"#f3a6a0", "#c5473c"}},
    {'W', "gradient of weights", {"#a9d8a4", "#54a24b"}},
}};

const KindOfBox& kind_of(const std::string& action) {
  return *std::find_if(kKinds.begin(), kKinds.end(),
                       [&](const KindOfBox& k) { return action.find(k.kind) != std::string::npos; });
}

void add_box(std::ostream& svg, double x, double y, double width, std::string_view colour, const std::string& text) {
  svg << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << width << "\" height=\"" << kBox << "\" fill=\""
      << colour << "\" stroke=\"white\"/>\n<text x=\"" << x + width / 2 << "\" y=\"" << y + kBox / 2 + 4
      << "\" text-anchor=\"middle\">" << text << "</text>\n";
}

void add_text(std::ostream& svg, double x, double y, const std::string& text) {
  svg << "<text x=\"" << x << "\" y=\"" << y << "\">" << text << "</text>\n";
}

}  // namespace

std::string schedule_svg(const json& schedule) {
  const json& ranks = schedule.at("ranks");
  const double unit = kWidth / schedule.at("makespan").get<double>();
  const double height = kTop + kLine * static_cast<double>(ranks.size()) + 40;
  std::ostringstream svg;
  svg << std::setprecision(6) << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << kLeft + kWidth + 20
      << "\" height=\"" << height << "\" font-family=\"sans-serif\" font-size=\"12\">\n"
      << "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  std::set<char> kinds;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const double y = kTop + kLine * static_cast<double>(r);
    add_text(svg, 8, y + kBox / 2 + 4, "rank " + std::to_string(r));
    int first_stage = -1;
    for (const json& timed : ranks[r]) {
      const auto action = timed.at("action").get<std::string>();
      const KindOfBox& kind = kind_of(action);
      const std::size_t at = action.find(kind.kind);
      const int stage = std::stoi(action.substr(0, at));
      if (first_stage < 0) first_stage = stage;
      const auto begin = timed.at("begin").get<double>();
      add_box(svg, kLeft + begin * unit, y, (timed.at("end").get<double>() - begin) * unit,
              kind.colours[stage == first_stage ? 0 : 1], action.substr(at + 1));
      kinds.insert(kind.kind);
    }
  }
  std::ostringstream title;
  title << std::setprecision(3) << "idle " << 100 * schedule.at("idle_share").get<double>()
        << " % of the ranks' time where links cost nothing";
  add_text(svg, kLeft, 24, title.str());
  double x = kLeft;
  for (const KindOfBox& kind : kKinds) {
    if (!kinds.contains(kind.kind)) continue;
    add_box(svg, x, height - 34, 24, kind.colours[0], "");
    add_text(svg, x + 30, height - 16, std::string(kind.name));
    x += 190;
  }
  svg << "</svg>\n";
  return svg.str();
}

}  // namespace droptest::cli
